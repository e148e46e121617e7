"""The Chrome trace event format, as far as a viewer such as Perfetto needs it: what is wrong with a trace, in words."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

PHASES = set("BEXiICnbesftPNODMVvRc")
"""Kinds of events that the format knows; `M` (metadata) needs no time."""
METADATA = {"process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index", "trace_config"}
SLACK = 1e-3
"""Microseconds by which rounded times may overlap."""


def parse(text: str) -> dict[str, Any]:
    """JSON in the strict sense: `NaN` and `Infinity`, which Python accepts, end a viewer's parser."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not JSON")

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def faults(trace: dict[str, Any]) -> list[str]:
    """Everything in a parsed trace that breaks the format."""
    events = trace.get("traceEvents")
    if not isinstance(events, list) or not events:
        return ["traceEvents is no list of events"]
    found = [f"event {number}: {fault}" for number, event in enumerate(events) for fault in _event(event)]
    return found or list(_nesting(events))


def _event(event: Any) -> Iterator[str]:
    if not isinstance(event, dict) or event.get("ph") not in PHASES:
        yield f"not an event of a known kind: {event!r:.80}"
        return
    if not isinstance(event.get("name", ""), str):
        yield "its name is no text"
    if not isinstance(event.get("args", {}), dict):
        yield "its args are no object"
    if event["ph"] == "M":
        if event.get("name") not in METADATA:
            yield f"unknown metadata {event.get('name')!r}"
        return
    if not _is_time(event.get("ts")):
        yield f"its time is {event.get('ts')!r}"
    if event["ph"] == "X" and not (_is_time(event.get("dur")) and event.get("name")):
        yield f"{event.get('name')!r} lasts {event.get('dur')!r}"
    if event["ph"] in "stf" and "id" not in event:
        yield "a flow without id"
    for key in ("pid", "tid"):
        if not isinstance(event.get(key), int | str):
            yield f"its {key} is {event.get(key)!r}"


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _nesting(events: list[dict[str, Any]]) -> Iterator[str]:
    """Complete events of one thread must lie inside each other or apart: a viewer drops those that overlap."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
    for thread, spans in threads.items():
        open_ends: list[float] = []
        for start, negative, name in sorted(spans):
            while open_ends and open_ends[-1] <= start + SLACK:
                open_ends.pop()
            if open_ends and start - negative > open_ends[-1] + SLACK:
                yield f"{name!r} of thread {thread} ends after the event around it"
            open_ends.append(start - negative)
