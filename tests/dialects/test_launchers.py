"""Launch lines: what poprun and mpirun hand to the workers, what contradicts the program, what has no effect."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.dialects.command_lines import COMPAT, plan_of, run_line

from conveyor.dialects.launchers import launch_words, read_poprun
from conveyor.dialects.mpi_options import read_options, split_options

PIPELINED = "python3 train.py --config mk2_resnet50_bn_16ipus --data-dir imagenet-data --no-validation"


def test_poprun_reads_its_own_words(monkeypatch):
    monkeypatch.setenv("PATH", "/here")
    request = read_poprun(
        [
            "-vv",
            "--host",
            "a,b",
            "--numa-aware=yes",
            "--num-instances=4",
            "--num-replicas",
            "8",
            "--mpi-local-args=-x A=1 -x PATH --tag-output",
            "python3",
            "x.py",
            "--z",
        ]
    )
    assert (request.launcher.replicas, request.launcher.instances, request.launcher.hosts) == (8, 4, ("a", "b"))
    assert (request.numa, request.tagged, request.variables, request.program) == (
        True,
        True,
        {"A": "1", "PATH": "/here"},
        ("python3", "x.py", "--z"),
    )
    words = launch_words(request, ["program"])
    assert words[0] == "launch"
    assert words[-2:] == ["--", "program"]
    assert "A=1" in words
    assert "--replicas" in words
    assert "--replicas" not in launch_words(request, ["program"], with_replicas=False)


def test_mpirun_in_its_older_spelling():
    words = [
        "--tag-output",
        "-H",
        "a,b",
        "-bind-to",
        "none",
        "-map-by",
        "slot",
        "-x",
        "PATH",
        "--mca",
        "x",
        "y",
        "python",
        "train.py",
        "-z",
    ]
    options, program = split_options(words)
    assert options == [
        ("--tag-output",), ("-H", "a,b"), ("--bind-to", "none"), ("--map-by", "slot"), ("-x", "PATH"), ("--mca", "x", "y"),
    ]  # fmt: skip
    assert program == ["python", "train.py", "-z"]


def test_options_of_mpirun():
    words = "-x A=1 -x B -x GONE --mca btl_tcp_if_include 10.1.3.0/24 --mca oob_tcp_if_include eth9 -H a:2,b --np 4 --bind-to none"
    read = read_options(words.split(), {"B": "two words"})
    assert read.variables == {"A": "1", "B": "two words"}
    assert (read.hosts, read.count, read.interface, read.tagged) == (("a", "b"), 4, "10.1.3.0/24", False)
    assert "-x GONE" in read.notes[0]
    assert "--bind-to none, --mca oob_tcp_if_include eth9" in read.notes[1]
    assert read_options(["--mca", "oob_tcp_if_include", "eth9"], {}).interface == "eth9"


def test_the_interface_goes_to_every_host():
    arguments = "--mpi-global-args=--mca btl_tcp_if_include 10.1.3.0/24"
    words = ["--num-instances", "2", "--num-replicas", "2", arguments, "python3", "x.py"]
    request = read_poprun(["--host", "a,b", *words])
    assert request.notes == ()
    sent = launch_words(request, ["program"])
    assert sent[sent.index("--interface") + 1] == "10.1.3.0/24"
    alone = read_poprun(words)
    assert "--interface" not in launch_words(alone, ["program"])
    assert "all workers are on one machine" in alone.notes[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--num-instances 4 --num-replicas 4 --ipus-per-replica 2", "--ipus-per-replica 2 contradicts the program"),
        ("--num-instances 8", "8 instances cannot share the program's 4 replicas evenly"),
        ("--host 203.0.113.1 --num-replicas 4", "is another machine"),
    ],
)
def test_a_launch_line_that_contradicts_the_program_is_refused(options, said, capsys):
    assert run_line(f"poprun {options} {PIPELINED}", "tensorflow1", ["--dry-run"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("tensorflow2", "poprun --num-instances 2 --num-replicas 2 --ipus-per-replica 4 python3 train.py"),
        ("pytorch", "poprun --num-instances 2 --num-replicas 2 --ipus-per-replica 2 python3 train.py --data cifar10"),
    ],
)
def test_devices_without_stages_are_refused(folder, command, capsys):
    assert run_line(command, folder, ["--dry-run"]) == 2
    assert "contradicts the program, whose replicas have 1 device each" in capsys.readouterr().err


def test_what_the_launcher_leaves_open_is_the_programs(capsys):
    plan = plan_of(f"poprun --num-instances 2 {PIPELINED}", "tensorflow1", capsys)
    assert (plan["replicas"], plan["stages"]) == (4, 4)
    assert any("no --ipus-per-replica: each replica has the 4 devices" in note for note in plan["notes"])


def test_variables_without_effect_get_one_note(capsys):
    variables = {"POPLAR_ENGINE_OPTIONS": "{}", "POPLAR_SDK_ENABLED": "/opt"}
    command = "poprun --num-replicas 2 --mpi-local-args='-x TF_POPLAR_FLAGS=--executable_cache_path=x' python3 train.py"
    plan = plan_of(command, "tensorflow1", capsys, variables=variables)
    notes = [note for note in plan["notes"] if "POPLAR" in note]
    assert len(notes) == 1
    assert notes[0].startswith("without effect here: POPLAR_ENGINE_OPTIONS, TF_POPLAR_FLAGS, ")


def poprun(words, folder, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, str(COMPAT / "bin" / "poprun"), *words]
    return subprocess.run(
        command, cwd=folder, env=environment, text=True, capture_output=True, timeout=120, check=False
    )


@pytest.mark.parametrize("hosts", [(), ("--host", "127.0.0.1,localhost")], ids=["one", "two"])
def test_variables_interface_and_marks_reach_every_worker(hosts, tmp_path):
    (tmp_path / "own.py").write_text(
        "import json, os, sys\n"
        "names = ('A', 'B', 'RANK', 'GLOO_SOCKET_IFNAME', 'CONVEYOR_REPLICAS')\n"
        "said = {name: os.environ.get(name) for name in names}\n"
        "json.dump(said, open(f'{sys.argv[1]}/{said[\"RANK\"]}.json', 'w'))\n"
        "print('worker', said['RANK'])\n"
    )
    words = [
        *hosts, "--num-instances", "2", "--num-replicas", "4", "--numa-aware", "1",
        "--mpi-global-args=--tag-output --mca btl_tcp_if_include 127.0.0.0/8", "--mpi-local-args=-x A=1 -x B",
        "python3", "own.py", str(tmp_path),
    ]  # fmt: skip
    done = poprun(words, tmp_path, B="two words")
    assert done.returncode == 0, done.stderr
    for rank in ("0", "1"):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert said == {
            "A": "1", "B": "two words", "RANK": rank, "GLOO_SOCKET_IFNAME": "lo", "CONVEYOR_REPLICAS": "4",
        }  # fmt: skip
        assert f"[{rank}] worker {rank}" in done.stdout


def test_marks_and_nodes_act_on_one_machine(tmp_path):
    words = [
        "--numa-aware", "1", "--num-instances", "2", "--num-replicas", "4", "--mpi-local-args=--tag-output",
        "python3", "train.py", "--synthetic-data", "--dataset", "cifar-10", "--updates", "1", "--no-validation",
        "--logs-path", str(tmp_path / "run"),
    ]  # fmt: skip
    done = poprun(words, COMPAT / "tensorflow1")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines
    assert all(line.startswith("[") for line in lines)
    assert json.loads((Path(tmp_path) / "run" / "result.json").read_text())["updates"] == 1
