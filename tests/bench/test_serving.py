import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from conveyor.bench import serving
from conveyor.bench.serving import Load, describe, growth, mean_of_neighbours


def test_growth_compares_the_end_with_the_second_quarter() -> None:
    assert growth([0.0] * 4 + [100.0] * 12) == 0.0, "the first quarter may fill caches"
    assert growth([100.0 + step for step in range(40)]) == pytest.approx(20.0)
    assert growth([1.0, 2.0]) == 0.0


def test_a_process_that_ends_while_it_is_read_counts_nothing() -> None:
    class Process:
        def __init__(self, seconds: float | None, *started: "Process") -> None:
            self.seconds, self.started = seconds, list(started)

        def children(self, recursive: bool) -> list["Process"]:
            return self.started

        def cpu_times(self) -> tuple[float, float]:
            if self.seconds is None:
                raise psutil.NoSuchProcess(1)
            return self.seconds, 0.5

    assert serving._cpu(Process(1.0, Process(2.0), Process(None))) == (1.5, 2.5)  # type: ignore[arg-type]
    assert serving._cpu(Process(None)) == (0.0, 0.0)  # type: ignore[arg-type]


def test_a_round_is_compared_with_the_direct_rates_mean_of_neighbours_it() -> None:
    assert mean_of_neighbours([10.0, 10.0, 12.0]) == [10.0, 11.0]


def test_servers_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Direct:
        def __init__(self, program: object, threads: int) -> None: ...

        def rate(self, request: object) -> float:
            asked.append("direct")
            return 10.0

        def close(self) -> None: ...

    @contextlib.contextmanager
    def server(command: Sequence[str], ready: Path) -> Iterator[tuple[dict[str, str], str]]:
        yield {}, ready.stem

    def run_clients(address: object, process: str, protocol: str, clients: int, seconds: float) -> Load:
        asked.append(process)
        return Load(8.0, 1, (), 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, ())

    monkeypatch.setattr(serving, "Session", Direct)
    monkeypatch.setattr(serving, "server", server)
    monkeypatch.setattr(serving, "run_clients", run_clients)
    monkeypatch.setattr(serving, "peer_python", lambda name: "python")
    record = serving.measure("model", serving.Wanted(rounds=2))
    assert asked == ["direct", "server", "plain", "direct", "plain", "server", "direct"]
    assert record.results["ratio to engine called directly"].values == (0.8, 0.8)


def test_a_load_tells_what_everybody_used() -> None:
    load = Load(50.0, 100, ("late",), 1.5, 20.0, 2.0, 0.5, 0.25, 3.0, (5.0,) * 8)
    said = describe(load)
    assert "1 failed" in said
    assert "clients 0.5, server 0.2, engines 3.0 in 2.0 s" in said
    assert "grew +0.0 MiB" in said
