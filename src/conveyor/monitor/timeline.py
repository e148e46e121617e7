"""Timestamps of what every worker does, for the Gantt chart of a pipeline.

Each worker keeps one `Timeline` (`here`) and writes it to `timeline-<worker>.json`; the report reads all of them. A
file `timeline*.json` is a list of `{"worker", "stage", "slot", "phase", "start", "end"}`: worker number, stage number,
slot number within the update (-1 where it has no meaning), phase (forward, backward, recompute, reduce, update, data,
send, receive, validate), Unix time in seconds. A phase that names waiting counts as idle.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from conveyor.files import parse_json, write_atomically

IDLE_PHASES = frozenset({"wait", "receive", "idle"})


class Span(TypedDict):
    worker: int
    stage: int
    slot: int
    phase: str
    start: float
    end: float


class Timeline:
    """Spans of one worker. Off (the default), `span` only adds up `seconds`. It stops by itself after `limit` spans.

    Times are the wall clock at creation plus the monotonic clock since, so they never decrease and agree between
    workers of a machine to some microseconds, between machines as well as their clocks do.
    """

    def __init__(self, worker: int = 0, *, enabled: bool = False, limit: int = 20_000) -> None:
        self.worker, self.enabled, self.limit = worker, enabled, limit
        self.spans: list[Span] = []
        self.seconds: dict[str, float] = {}
        """Sum of the spans of each phase since the process began, also while the timeline is off."""
        self._offset = time.time() - time.perf_counter()

    def now(self) -> float:
        return self.at(time.perf_counter())

    def at(self, reading: float) -> float:
        """The time of a reading of `time.perf_counter`."""
        return self._offset + reading

    def add(self, phase: str, start: float, end: float, *, stage: int = 0, slot: int = -1) -> None:
        if self.enabled and len(self.spans) < self.limit:
            self.spans.append(
                {"worker": self.worker, "stage": stage, "slot": slot, "phase": phase, "start": start, "end": end}
            )

    @contextmanager
    def span(self, phase: str, *, stage: int = 0, slot: int = -1) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.seconds[phase] = self.seconds.get(phase, 0.0) + end - start
            self.add(phase, self.at(start), self.at(end), stage=stage, slot=slot)


here = Timeline()
"""This worker's spans; off until `start` is called."""


def start(worker: int, limit: int = 4000) -> Timeline:
    """Record from now on in `here`, as this worker."""
    here.worker, here.limit, here.enabled = worker, limit, True
    here.spans.clear()
    return here


def write(path: Path, spans: Iterable[Span]) -> None:
    """Write the spans of a worker, ordered by start, times rounded to microseconds."""
    ordered = sorted(spans, key=lambda span: span["start"])
    rounded = [{**span, "start": round(span["start"], 6), "end": round(span["end"], 6)} for span in ordered]
    write_atomically(path, json.dumps(rounded, separators=(",", ":")))


def read(folder: Path) -> list[Span]:
    """The spans of all workers in a run folder, counted from the first start."""
    spans: list[Span] = []
    for path in sorted(folder.glob("timeline*.json")):
        spans += parse_json(path.read_text(encoding="utf-8"))
    origin = min((span["start"] for span in spans), default=0.0)
    for span in spans:
        span["start"], span["end"] = span["start"] - origin, span["end"] - origin
    return sorted(spans, key=lambda span: span["start"])


def busy_seconds(spans: Iterable[Span]) -> dict[int, float]:
    """Seconds during which each worker was in any phase that is not waiting; overlapping spans count once."""
    by_worker: dict[int, list[tuple[float, float]]] = {}
    for span in spans:
        intervals = by_worker.setdefault(span["worker"], [])
        if span["phase"] not in IDLE_PHASES:
            intervals.append((span["start"], span["end"]))
    return {worker: _union(intervals) for worker, intervals in sorted(by_worker.items())}


def _union(intervals: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
