"""Several loaders on the same files in alternating rounds, each in a process of its own.

`python -m conveyor.bench.loader_comparison NAME` is such a process, driven by `measure.rounds`: its first line of
input holds files, size, batch and threads; in each round it delivers all files once.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conveyor.bench.loader_speed import Clock, cpu_seconds
from conveyor.bench.records import OURS, Record, Sample, make_record, ratios
from conveyor.errors import UserError
from conveyor.measure.rounds import Program, run_rounds
from conveyor.processes import of_module

_SETTLE = 0.2
"""Seconds after a round in which a loader may finish its work; CPU time in them counts, wall-clock time does not."""
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1"}


def measure(files: Sequence[Path], *, size: int, batch: int, threads: int, rounds: int) -> Record:
    """The installed loaders in `rounds` rounds, after one to warm up."""
    from conveyor.bench import loader_peers

    job = json.dumps({"files": [str(path) for path in files], "size": size, "batch": batch, "threads": threads})
    sides = [
        Program(name, of_module("conveyor.bench.loader_comparison", name), _ENVIRONMENT, first=job)
        for name in loader_peers.available()
    ]
    measured = run_rounds(sides, rounds=rounds + 1, steps=1, threads=None)
    conditions = {"threads": threads, "files": len(files), "batch": batch, "rounds": rounds, "absent": measured.absent}
    return record({name: answers[1:] for name, answers in measured.answers.items()}, size, **conditions)


def record(answers: Mapping[str, Sequence[dict[str, float]]], size: int, **conditions: Any) -> Record:
    """Rates are those per CPU second, which other programs disturb least; ratios are ours to a loader, round by round."""
    if OURS not in answers:
        raise UserError(f"our own side did not run: {conditions['absent'].get(OURS, 'it was left out')}")
    results = {}
    for name, own in answers.items():
        for clock, unit, rate, ratio in (
            ("cpu_seconds", "img/CPU-s", "rate", ""),
            ("seconds", "img/s", "images per second", " in images per second"),
        ):
            ours, its = ([one["images"] / max(one[clock], 1e-9) for one in rounds] for rounds in (answers[OURS], own))
            results[f"{name} {rate}"] = Sample(unit, tuple(its))
            if name != OURS:
                results[f"ratio to {name}{ratio}"] = ratios(ours, its)
    return make_record(f"data-photographs-{size}px", results, kind="data", **conditions)


def _serve(name: str) -> None:
    """Answer the requests on standard input; what the libraries print goes elsewhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        from conveyor.bench import loader_peers

        job = json.loads(sys.stdin.readline())
        files = [Path(path) for path in job["files"]]
        deliver = loader_peers.available()[name](files, job["size"], job["batch"], job["threads"])
        answer({"ready": True})
        for _ in sys.stdin:
            cpu = cpu_seconds()
            with Clock() as clock:
                images = deliver()
            time.sleep(_SETTLE)
            if images != len(files):
                raise ValueError(f"delivered {images} of {len(files)} images")
            answer({"images": images, "seconds": clock.seconds, "cpu_seconds": cpu_seconds() - cpu})
    except Exception as error:
        answer({"unavailable": f"{type(error).__name__}: {error}"[:300]})


if __name__ == "__main__":
    _serve(sys.argv[1])
