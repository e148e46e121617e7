"""Two runs in a row: in the workers of any launcher they give what two commands give."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launch.test_run_job import RUN, open_mpi, slurm, tf_config

from conveyor.launch.run_job import start
from conveyor.options import Options

SCRIPT = """
import json, sys
from conveyor.launch.run_job import start
from conveyor.options import Options

first, second = (Options.from_mapping(each) for each in json.loads(sys.argv[1]))
result = start(first, after=[second])
print(json.dumps(result))
"""


ALONE = """
import json, sys
from conveyor.launch.run_job import start
from conveyor.options import Options

start(Options.from_mapping(json.loads(sys.argv[1])))
"""


def phases(folder: Path, **more: object) -> list[dict[str, object]]:
    first = {**RUN, **more, "run_dir": str(folder / "first")}
    second = {
        **first,
        "accumulation": 4,
        "updates": 1,
        "weights": str(folder / "first"),
        "run_dir": str(folder / "second"),
    }
    return [first, second]


def weights(folder: Path) -> list[bytes]:
    return [
        (folder / name / "model.safetensors").read_bytes() for name in ("first/checkpoints/2", "second/checkpoints/1")
    ]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What two commands leave."""
    folder = tmp_path_factory.mktemp("commands")
    for options in phases(folder, layout="2x1"):
        command = [sys.executable, "-c", ALONE, json.dumps(options)]
        subprocess.run(command, capture_output=True, timeout=180, check=True)
    return weights(folder)


def torchrun(rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip


@pytest.mark.parametrize("launcher", [torchrun, open_mpi, slurm, tf_config])
def test_workers_of_a_launcher_run_both_phases(
    launcher: Callable[[int, int], dict[str, str]], tmp_path: Path, expected: list[bytes]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = []
    for rank in range(2):
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **launcher(rank, port)}
        command = [sys.executable, "-c", SCRIPT, json.dumps(phases(tmp_path))]
        workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path))
    outputs = [worker.communicate(timeout=180)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert json.loads(outputs[0].splitlines()[-1])["folder"] == str(tmp_path / "second")
    assert json.loads(outputs[1]) is None
    assert weights(tmp_path) == expected


def test_the_agents_store_of_torchrun_outlives_the_first_phase(tmp_path: Path, expected: list[bytes]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [*command, json.dumps(phases(tmp_path))], capture_output=True, text=True, timeout=180, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert weights(tmp_path) == expected


def test_alone_and_when_the_first_phase_is_cut_short(tmp_path: Path) -> None:
    first, second = (Options.from_mapping(options) for options in phases(tmp_path / "whole", layout="1x1"))
    assert start(first, after=[second])["folder"] == str(tmp_path / "whole/second")
    first, second = (Options.from_mapping(options) for options in phases(tmp_path / "short", layout="1x1"))
    result = start(first.replace(max_time="0.000001s"), after=[second])
    assert (result["reason"], result["folder"]) == ("time", str(tmp_path / "short/first"))
    assert not (tmp_path / "short/second").exists()
