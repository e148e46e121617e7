"""Strangers: other users of the machine, other machines, people with a wrong secret. Nobody gets in, nothing is run."""

import ipaddress
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.launch.network import ADDRESSES

from conveyor.errors import UserError
from conveyor.launch.interface import addresses
from conveyor.launch.store import UNIX, Store

TRAIN = [
    "train", "--updates", "100000", "--micro-batch-size", "4", "--accumulation", "4", "--no-validation", "--no-report",
    "--no-tensorboard", "--updates-per-epoch", "2", "--checkpoints-to-keep", "2", "--quiet", "--device", "cpu",
]  # fmt: skip
CONVEYOR = [sys.executable, "-m", "conveyor"]
PORT = 29417

ATTACK = """
import contextlib, os, socket, sys
from datetime import timedelta
from torch.distributed import TCPStore
socket.getaddrinfo("localhost", 0)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
payload = sys.argv[1].encode()
keys = ["torch.rendezvous.conveyor", "torch.rendezvous.none", "/torch.rendezvous.conveyor"]
for target in sys.argv[2:]:
    kind, _, place = target.partition("=")
    host, _, port = place.rpartition(":")
    if kind == "unix":
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
            one.connect(place)
            print("a stranger may connect to", place)
        continue
    # What torch's store answers to, then what anyone may send.
    with contextlib.suppress(Exception):
        assert kind == "store"
        store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1))
        for key in keys:
            store.set(key, payload)
        print("torch's store answers at", target)
    # To gloo these are sequence numbers of workers that it waits for.
    for content in (payload, b"GET / HTTP/1.0\\r\\n\\r\\n", b"", b"\\xff" * 4096, *(n.to_bytes(8, "little") for n in range(8))):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 2) as one:
            one.sendall(content)
"""


class Opened:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.path),)


def payload(path: Path) -> str:
    import base64

    return base64.b64encode(pickle.dumps(Opened(path))).decode()


@pytest.fixture
def jobs() -> Iterator[list["subprocess.Popen[str]"]]:
    """Jobs to be ended with the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for job in started:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate(timeout=20)


def begin(command: list[str], place: Path, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command, start_new_session=True, cwd=place, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def wait_for_checkpoint(folder: Path, job: "subprocess.Popen[str]", beyond: int = 0) -> int:
    """The number of a complete checkpoint after `beyond`."""
    until = time.monotonic() + 90
    while True:
        made = [int(one.parent.name) for one in folder.glob("checkpoints/*/manifest") if one.parent.name.isdigit()]
        if max(made, default=0) > beyond:
            return max(made)
        assert job.poll() is None, job.communicate()[1]
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def listening(process: psutil.Process) -> list[str]:
    """Addresses host:port where the process listens."""
    found = [one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    return [f"{address.ip}:{address.port}" for address in found]


def leave(job: "subprocess.Popen[str]") -> str:
    """End the job as a cluster would; what it said."""
    job.send_signal(signal.SIGTERM)
    said = job.communicate(timeout=60)[1]
    assert job.returncode == 128 + signal.SIGTERM, said
    return said


def named_outside() -> list[str]:
    """Before a command: there the machine's own name is an address outside loopback, at which gloo listens unless told."""
    found = [
        one
        for many in addresses().values()
        for one in many
        if not ipaddress.ip_address(one).is_loopback and ":" not in one
    ]
    if not found or os.getuid() != 0 or shutil.which("unshare") is None:
        return []
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', found[0]]


def test_one_machine(tmp_path: Path, jobs: list["subprocess.Popen[str]"]) -> None:
    """Only loopback is listened at; the store is out of other users' reach; what strangers send changes nothing."""
    folder = tmp_path / "run"
    command = [*named_outside(), *CONVEYOR, *TRAIN, "--layout", "2x1", "--run-dir", str(folder)]
    jobs.append(begin(command, tmp_path))
    made = wait_for_checkpoint(folder, jobs[0])
    launcher = psutil.Process(jobs[0].pid)
    stores, others = (
        listening(launcher),
        [one for child in launcher.children(recursive=True) for one in listening(child)],
    )
    outside = [one for one in stores + others if not ipaddress.ip_address(one.rpartition(":")[0]).is_loopback]
    assert others, "gloo listens"
    assert not outside
    (store,) = {one.laddr for one in launcher.net_connections("unix") if one.laddr.endswith("/store")}
    with pytest.raises(UserError, match="does not accept this secret"):
        Store(f"{UNIX}{store}", b"a wrong secret of the user", patience=5)
    mark = tmp_path / "opened"
    targets = [f"unix={store}", *(f"store={one}" for one in stores), *(f"gloo={one}" for one in others)]
    command = [sys.executable, "-c", ATTACK, payload(mark), *targets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    # Who is not root tries as the same user, who may connect and has no secret.
    assert done.stdout == "" or os.getuid() != 0
    wait_for_checkpoint(folder, jobs[0], beyond=made)
    leave(jobs[0])
    assert not mark.exists()
    assert not Path(store).parent.exists()


def test_two_machines(namespaces: tuple[str, str], tmp_path: Path, jobs: list["subprocess.Popen[str]"]) -> None:
    """The first host listens at its own address alone; without the secret, or with a wrong one, nobody takes part."""
    secrets = [tmp_path / name for name in ("right", "wrong")]
    for path in secrets:
        path.write_text(path.name * 8)
        path.chmod(0o600)
    folder = tmp_path / "run"

    def share(index: int, secret: Path) -> list[str]:
        launch = [
            "launch", "--hosts", ",".join(ADDRESSES), "--host-index", str(index), "--instances", "2", "--min-hosts", "1",
            "--threads", "1", "--port", str(PORT), "--interface", "cable0", "--secret-file", str(secret), "--",
        ]  # fmt: skip
        within = ["ip", "netns", "exec", namespaces[index]]
        return [*within, *CONVEYOR, *launch, *CONVEYOR, *TRAIN, "--run-dir", str(folder)]

    jobs.append(begin(share(0, secrets[0]), tmp_path))
    made = wait_for_checkpoint(folder, jobs[0])
    shown = subprocess.run(
        ["ip", "netns", "exec", namespaces[0], "ss", "-ltnH"], capture_output=True, text=True, check=True
    )
    addresses = [line.split()[3] for line in shown.stdout.splitlines()]
    assert f"{ADDRESSES[0]}:{PORT}" in addresses
    assert {one.rpartition(":")[0] for one in addresses} <= {ADDRESSES[0]}
    mark = tmp_path / "opened"
    attack = ["ip", "netns", "exec", namespaces[1], sys.executable, "-c", ATTACK, payload(mark)]
    attack += [f"store={one}" for one in addresses]
    jobs.append(begin(share(1, secrets[1]), tmp_path))
    done = subprocess.run(attack, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == ""
    wrong = jobs[1].communicate(timeout=60)[1]
    assert jobs[1].returncode == 2, wrong
    assert "does not accept this secret" in wrong
    assert "Traceback" not in wrong
    wait_for_checkpoint(folder, jobs[0], beyond=made)
    said = leave(jobs[0])
    assert said.count(f"refused a connection from {ADDRESSES[1]}") == 1, said
    assert not mark.exists()


def test_a_stranger_in_a_workers_place_is_found(tmp_path: Path) -> None:
    """gloo lets in whoever connects first; without the key of the job the group is not used."""
    script = """
import sys, torch.distributed as dist
from conveyor.errors import UserError
from conveyor.world.distributed import know_each_other
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
know_each_other(rank, range(2), None, b"the key of the job")
try:
    know_each_other(rank, range(2), None, b"the key of the job" if rank == 0 else b"a guess")
except UserError as error:
    print(error)
"""
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    both = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    outputs = [one.communicate(timeout=60)[0] for one in both]
    assert "not worker 1 of this job" in outputs[0]
    assert "not worker 0 of this job" in outputs[1]


def test_torchruns_store_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run folder that a job keeps in torchrun's store is signed: a stranger cannot choose where files go."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from conveyor.launch.rank import Place
    from conveyor.launch.rendezvous import kept_by_torchrun

    monkeypatch.setenv("CONVEYOR_SECRET", "s" * 32)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    place = Place(rank=0, size=2, local_rank=0, local_size=2, address="127.0.0.1", port=port, launcher="torchrun")
    assert kept_by_torchrun(place, "runs/first") == "runs/first"
    assert kept_by_torchrun(place, "runs/second") == "runs/first"
    store.set("conveyor/kept/0", b"0" * 64 + b" /etc")
    with pytest.raises(UserError, match="without the job's secret"):
        kept_by_torchrun(place, "runs/third")
