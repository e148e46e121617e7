"""What is started where."""

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from conveyor.errors import UserError
from conveyor.launch import hosts
from conveyor.launch.cores import available_cores
from conveyor.launch.hosts import commands
from conveyor.launch.job import LaunchPlan, host_command, ssh_command
from conveyor.processes import this_program


def test_instances_keep_their_meaning() -> None:
    plan = LaunchPlan(instances=8, replicas=16)
    assert plan.num_workers == 8
    assert LaunchPlan(instances=4, hosts=("a", "b")).workers_per_host == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"instances": 0}, "at least one"),
        ({"instances": 4, "replicas": 2}, "at least one replica"),
        ({"instances": 4, "replicas": 6}, "multiple of 4"),
        ({"instances": 3, "hosts": ("a", "b")}, "multiple of 2"),
        ({"hosts": ("a",), "this_host": 1}, "count from 0"),
        ({"instances": 2, "hosts": ("a", "b"), "min_hosts": 3}, "1 to 2"),
    ],
)
def test_impossible_plans_say_what_to_do(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LaunchPlan(**wrong)  # type: ignore[arg-type]


def test_the_worker_environment() -> None:
    cores = available_cores()
    plan = LaunchPlan(instances=len(cores), replicas=2 * len(cores), devices_per_replica=4, environment={"A": "1"})
    variables = plan.worker_environment()
    assert variables["A"] == "1"
    assert variables["CONVEYOR_CORES"] == ";".join(map(str, cores))
    assert variables["CONVEYOR_REPLICAS"] == str(2 * len(cores))
    assert variables["CONVEYOR_DEVICES_PER_REPLICA"] == "4"
    assert variables["GLOO_SOCKET_IFNAME"] == "lo", "a job of one machine is not seen from outside"
    assert "GLOO_SOCKET_IFNAME" not in LaunchPlan(instances=2, hosts=("a", "b")).worker_environment()


def test_each_host_has_its_command() -> None:
    plan = LaunchPlan(
        instances=4,
        replicas=8,
        hosts=("a", "me@b"),
        max_restarts=2,
        environment={"DATA": "a b"},
        tagged=True,
        interface="eth1",
    )
    (first, command), (second, _) = commands(["conveyor", "train"], plan)
    assert (first, second) == ("a", "me@b")
    text = " ".join(command)
    for part in (
        "--host-index 0",
        "--port 29400",
        "--replicas 8",
        "--env DATA=a b",
        "--tag-output",
        "--interface eth1",
    ):
        assert part in text
    assert command[-3:] == ["--", "conveyor", "train"]
    remote = ssh_command("me@b", host_command(plan, 1, ["x"]), "/my folder")
    assert remote[-2] == "me@b"
    assert remote[-1].startswith("cd '/my folder' && exec conveyor launch")
    assert "'DATA=a b'" in remote[-1]
    assert plan.meeting_host == "a"


def test_a_job_without_a_command_is_refused() -> None:
    from conveyor.launch.hosts import run

    with pytest.raises(UserError, match="nothing to start"):
        run([], LaunchPlan())


def test_a_share_behind_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`conveyor` is this very installation there too; the secret comes by standard input, and its end ends the share."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" > said.tmp\nread secret; echo "$secret" >> said.tmp\nmv said.tmp said\ncat'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    plan = LaunchPlan(instances=2, hosts=("far.example",), secret="not for the command line")
    started = hosts._start_others(this_program(["conveyor", "train", "--data", "digits"]), plan, None)
    try:
        until = time.monotonic() + 30
        while not (tmp_path / "said").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        assert started[0][1].poll() is None
    finally:
        hosts._end(started)
    assert started[0][1].returncode == 0, "it ended by itself"
    *_, host, command, secret = (tmp_path / "said").read_text().splitlines()
    assert host == "far.example"
    assert command.count(f"{sys.executable} -P -m conveyor") == 2
    assert "--secret-file - " in command
    assert secret == "not for the command line"
    assert secret not in command


def test_the_usual_port_gives_way_and_a_wished_one_does_not() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hosts, "DEFAULT_PORT", port)
            assert hosts._usable_port(port) not in (0, port)
        with pytest.raises(UserError, match=f"port {port} is taken"):
            hosts._usable_port(port)
    assert hosts._usable_port(port) == port


def test_an_ssh_that_cannot_be_started_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*words: object, **how: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("conveyor.launch.hosts.subprocess.Popen", refused)
    plan = LaunchPlan(instances=2, hosts=("first.invalid", "second.invalid"))
    with pytest.raises(UserError, match=r"ssh cannot be started \(Permission denied\)"):
        hosts.run(["true"], plan)
