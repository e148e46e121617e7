"""Several loaders on the same files in alternating rounds, each in a process of its own.

`python -m conveyor.bench.loader_comparison NAME` is such a process, driven by `measure.rounds`: its first line of
input holds files, size, batch and threads; in each round it delivers all files once.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conveyor.bench.loader_speed import Clock, Rate, cpu_seconds
from conveyor.bench.records import OURS
from conveyor.errors import UserError
from conveyor.measure.rounds import Program, run_rounds
from conveyor.processes import of_module

_SETTLE = 0.2
"""Seconds after a round in which a loader may finish its work; CPU time in them counts, wall-clock time does not."""
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1"}


def compare(
    names: Sequence[str], files: Sequence[Path], *, size: int, batch: int, threads: int, rounds: int
) -> tuple[dict[str, list[Rate]], dict[str, str]]:
    """Rates of each loader in `rounds` rounds, after one to warm up; and why others have none."""
    job = json.dumps({"files": [str(path) for path in files], "size": size, "batch": batch, "threads": threads})
    sides = [
        Program(name, of_module("conveyor.bench.loader_comparison", name), _ENVIRONMENT, first=job) for name in names
    ]
    measured = run_rounds(sides, rounds=rounds + 1, steps=1, threads=None)
    if OURS not in measured.answers:
        raise UserError(f"our own side did not run: {measured.absent.get(OURS, 'it was left out')}")
    rates = {
        name: [Rate(one["images"], one["seconds"], one["cpu_seconds"]) for one in answers[1:]]
        for name, answers in measured.answers.items()
    }
    return {name: rates[name] for name in names if name in rates}, measured.absent


def rows(rates: Mapping[str, Sequence[Rate]]) -> list[dict[str, Any]]:
    """One mapping per loader: rates and our ratios to it, round by round, and the middle of each."""
    found = []
    for name, own in rates.items():
        pairs = list(zip(rates[OURS], own, strict=True))
        per_second, per_cpu_second = [rate.per_second for rate in own], [rate.per_cpu_second for rate in own]
        cpu_ratios = [ours.per_cpu_second / its.per_cpu_second for ours, its in pairs]
        found.append(
            {
                "loader": name,
                "rates": per_second,
                "cpu_rates": per_cpu_second,
                "ratios": [ours.per_second / its.per_second for ours, its in pairs],
                "cpu_ratios": cpu_ratios,
                "images_per_second": statistics.median(per_second),
                "spread": max(per_second) - min(per_second),
                "images_per_cpu_second": statistics.median(per_cpu_second),
                "ours_over_it": statistics.median(cpu_ratios),
            }
        )
    return found


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
