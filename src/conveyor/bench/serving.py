"""A server under many clients and its engine called directly, in alternating rounds, with CPU time and memory of each.

`conveyor bench serving EXPORT` uses the ordinary commands `conveyor serve` and `conveyor request`. Clients, server and
engines share the machine, so the clients' processor time is reported too: it is work that the engine called directly
does not compete with.
"""

import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from conveyor.bench.peer_programs import peer_program, peer_python
from conveyor.bench.records import OURS, Record, Sample, make_record, ratios
from conveyor.errors import UserError
from conveyor.infer import ENGINES
from conveyor.layout import usable_cores
from conveyor.measure.rounds import Session, UnavailableError, in_turn
from conveyor.options.field import option
from conveyor.processes import of_module
from conveyor.serve import launcher

SAMPLE_SECONDS = 0.5
MIB = 1 << 20
DIRECT, PLAIN = "engine called directly", "FastAPI and ONNX Runtime"


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients of one round saw, and what the server's processes used meanwhile."""

    images_per_second: float
    requests: int
    failures: tuple[str, ...]
    latency_p50: float
    latency_p99: float
    seconds: float
    client_cpu: float
    server_cpu: float
    engine_cpu: float
    memory_mib: tuple[float, ...]
    """Resident memory of the server and its engine processes, twice a second."""

    @property
    def growth(self) -> float:
        return growth(self.memory_mib)


def growth(memory: Sequence[float]) -> float:
    """MiB by which the last quarter's median exceeds that of the second quarter; the first quarter is warm-up and left out."""
    if len(memory) < 8:
        return 0.0
    quarter = len(memory) // 4
    return Sample("MiB", tuple(memory[-quarter:])).median - Sample("MiB", tuple(memory[quarter : 2 * quarter])).median


@contextlib.contextmanager
def server(command: Sequence[str], ready: Path) -> Iterator[tuple[dict[str, Any], psutil.Process]]:
    """A server for the body of a `with` statement: what its ready file says, and its process."""
    process = subprocess.Popen(list(command), stdout=subprocess.DEVNULL)
    try:
        about = launcher.wait_ready(process, ready)
        if about is None:
            raise UserError("the server did not become ready; see its output above")
        yield about, psutil.Process(process.pid)
    finally:
        launcher.stop(process)


def run_clients(
    address: dict[str, Any],
    process: psutil.Process,
    protocol: str,
    clients: int,
    seconds: float,
    rate: float | None = None,
) -> Load:
    """`conveyor request` against a running server, with its processes watched; `rate` requests a second, or as many as go."""
    command = of_module(
        "conveyor", "request", address["url"], "--name", address["name"], "--protocol", protocol,
        "--clients", str(clients), "--seconds", str(seconds), "--timeout", "60", "--json",
    )  # fmt: skip
    if address.get("grpc_port"):
        command += ["--grpc-port", str(address["grpc_port"])]
    if rate is not None:
        command += ["--rate", str(rate)]
    memory: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            memory.append(sum(_of_each(process, lambda each: each.memory_info().rss)) / MIB)

    watcher = threading.Thread(target=watch)
    before = _cpu(process)
    watcher.start()
    try:
        asked = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    finally:
        done.set()
        watcher.join()
    after = _cpu(process)
    try:
        report = json.loads(asked.stdout)
    except ValueError:
        raise UserError("`conveyor request` failed; see its output above") from None
    latency = report["latency_ms"] or {"p50": float("nan"), "p99": float("nan")}
    return Load(
        report["images_per_second"], report["requests"], tuple(report["failures"]), latency["p50"], latency["p99"],
        report["seconds"], report["client_cpu_seconds"], after[0] - before[0], after[1] - before[1], tuple(memory),
    )  # fmt: skip


def _of_each(process: psutil.Process, read: Callable[[psutil.Process], float]) -> list[float]:
    """What `read` gives of a process and of those that it started; one that ends meanwhile (an engine replaced) counts 0."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in (process, *process.children(recursive=True)):
            found.append(0.0)
            with contextlib.suppress(psutil.NoSuchProcess):
                found[-1] = read(each)
    return found


def _cpu(process: psutil.Process) -> tuple[float, float]:
    """Processor seconds of the server itself and of its engine processes."""
    own, *children = _of_each(process, lambda each: sum(each.cpu_times()[:2])) or [0.0]  # user and system
    return own, sum(children)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a server is loaded."""

    onnx: str | None = option(
        None, "For the plain server of `make peers`, where EXPORT has no model.onnx.", metavar="FILE"
    )
    engine: str = option("auto", "Of the server and called directly.", choices=ENGINES)
    batch: int = option(8, "Of the direct engine, and the server's largest.", minimum=1)
    clients: int = option(32, "Client processes.", minimum=1)
    seconds: float = option(60.0, "Of load in a round.", minimum=0)
    direct_seconds: float = option(15.0, "Of the direct engine, around a round.", minimum=0)
    rounds: int = option(2, "Alternating rounds.", minimum=1)
    protocol: str = option("http", "Of our server.", choices=("grpc", "http"))
    workers: int | None = option(None, "Engine processes; default: one for each core, 8 at most.", minimum=1)


def measure(path: str, wanted: Wanted, report: Callable[[str], None] = lambda text: None) -> Record:
    """Alternate the direct engine, the loaded server and, where its environment is installed, the plain server."""
    cores, direct_turn = usable_cores(), {"seconds": wanted.direct_seconds}
    workers = wanted.workers or min(cores, 8)
    threads = max(1, cores // workers)
    asked = {"path": path, "engine": wanted.engine, "batch": wanted.batch, "threads": threads, "workers": workers}
    direct: list[float] = []
    loads: dict[str, list[Load]] = {OURS: []}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        try:
            session = Session(peer_program(DIRECT, "engine_replicas", asked), threads)
        except UnavailableError as error:
            why = str(error).removeprefix("conveyor.errors.UserError: ")
            raise UserError(f"{path} cannot be served: {why}") from None
        stack.callback(session.close)
        command = of_module(
            "conveyor", "serve", path, "--port", "0", "--grpc-port", "0", "--engine", wanted.engine,
            "--workers", str(workers), "--threads", str(threads), "--max-batch", str(wanted.batch), "--poll", "0",
            "--ready-file", f"{folder}/server.json",
        )  # fmt: skip
        servers = {OURS: stack.enter_context(server(command, Path(folder) / "server.json"))}
        if peer_python("fastapi"):
            order = {"onnx": wanted.onnx or str(Path(path) / "model.onnx"), "ready_file": f"{folder}/plain.json"}
            plain = peer_program(PLAIN, "plain_server", order, "fastapi")
            servers[PLAIN] = stack.enter_context(server(plain.command, Path(folder) / "plain.json"))
            loads[PLAIN] = []
        direct.append(session.rate(direct_turn))
        for number in range(wanted.rounds):
            for name in in_turn(servers, number):
                address, process = servers[name]
                spoken = wanted.protocol if name == OURS else "http"
                loads[name].append(run_clients(address, process, spoken, wanted.clients, wanted.seconds))
                report(f"round {number + 1}: {name}: {describe(loads[name][-1])}")
            direct.append(session.rate(direct_turn))
            report(f"round {number + 1}: direct {direct[-2]:.2f} before, {direct[-1]:.2f} img/s after")
    told = {name: getattr(wanted, name) for name in ("clients", "protocol", "seconds")}
    conditions = {**asked, "path": Path(path).name, **told}
    return _record(Path(path).name, direct, loads, conditions)


def describe(load: Load) -> str:
    return (
        f"{load.images_per_second:.2f} img/s, {load.requests} requests, {len(load.failures)} failed, p50 "
        f"{load.latency_p50:.0f} ms, p99 {load.latency_p99:.0f} ms; CPU s: clients {load.client_cpu:.1f}, server "
        f"{load.server_cpu:.1f}, engines {load.engine_cpu:.1f} in {load.seconds:.1f} s; memory grew {load.growth:+.1f} MiB"
    )


def _record(name: str, direct: list[float], loads: dict[str, list[Load]], conditions: dict[str, Any]) -> Record:
    rates = {who: [each.images_per_second for each in found] for who, found in loads.items()}
    rates[DIRECT] = mean_of_neighbours(direct)
    results = {f"{who} rate": Sample("img/s", tuple(values)) for who, values in rates.items()}
    results |= {f"ratio to {who}": ratios(rates[OURS], values) for who, values in rates.items() if who != OURS}
    for who, found in loads.items():
        results |= {
            f"{who} failed requests": Sample("", tuple(float(len(each.failures)) for each in found)),
            f"{who} p50": Sample("ms", tuple(each.latency_p50 for each in found)),
            f"{who} p99": Sample("ms", tuple(each.latency_p99 for each in found)),
            f"{who} own CPU": Sample("s", tuple(each.server_cpu for each in found)),
            f"{who} engines CPU": Sample("s", tuple(each.engine_cpu for each in found)),
            f"{who} clients CPU": Sample("s", tuple(each.client_cpu for each in found)),
            f"{who} memory growth": Sample("MiB", tuple(each.growth for each in found)),
        }
    label = f"serving-{name}-c{conditions['clients']}-b{conditions['batch']}"
    return make_record(label, results, kind="serving", model=name, **conditions)


def mean_of_neighbours(direct: Sequence[float]) -> list[float]:
    """For each round the mean of the direct rates just before and just after it."""
    return [(before + after) / 2 for before, after in pairwise(direct)]
