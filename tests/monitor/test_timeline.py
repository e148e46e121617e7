"""Spans of workers: recorded in order, merged, and turned into busy time."""

from pathlib import Path

from conveyor.monitor import timeline


def span(worker: int, phase: str, start: float, end: float) -> timeline.Span:
    return {"worker": worker, "stage": worker, "slot": 0, "phase": phase, "start": start, "end": end}


def test_off_records_nothing_and_the_limit_holds() -> None:
    off, on = timeline.Timeline(), timeline.Timeline(3, enabled=True, limit=2)
    for line in (off, on):
        for slot in range(4):
            with line.span("forward", stage=1, slot=slot):
                pass
    assert off.spans == []
    assert [(entry["worker"], entry["slot"]) for entry in on.spans] == [(3, 0), (3, 1)]
    assert on.spans[0]["end"] <= on.spans[1]["start"]


def test_the_workers_files_are_read_as_one(tmp_path: Path) -> None:
    assert timeline.read(tmp_path) == []
    timeline.write(tmp_path / "timeline-0.json", [span(0, "backward", 102.0, 103.0), span(0, "forward", 101.0, 101.5)])
    timeline.write(tmp_path / "timeline-1.json", [span(1, "forward", 101.5, 102.0)])
    found = [(entry["worker"], entry["start"], entry["end"]) for entry in timeline.read(tmp_path)]
    assert found == [(0, 0, 0.5), (1, 0.5, 1), (0, 1, 2)]


def test_overlaps_count_once_and_waiting_not_at_all() -> None:
    spans = [span(0, "forward", 0, 2), span(0, "send", 1, 3), span(0, "receive", 3, 9), span(1, "wait", 0, 1)]
    assert timeline.busy_seconds(spans) == {0: 3.0, 1: 0.0}
