"""Several loaders on the same files in alternating rounds, each in a process of its own.

`python -m conveyor.bench.loader_contest NAME` is such a process: it takes files, size, batch and threads as a line of JSON, answers
`{}` when it is ready (or `{"failed": why}`), then for each further line delivers all files once and answers with images,
seconds and CPU seconds.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conveyor.bench.loader_speed import Clock, Rate, cpu_seconds
from conveyor.errors import UserError
from conveyor.processes import of_module

OURS = "conveyor"
_SETTLE = 0.2
"""Seconds after a round in which a loader may end what it has begun; their CPU time counts, their time does not."""


@dataclasses.dataclass(slots=True)
class Outcome:
    """Rates of each loader, one per round; `failed` says why a loader has none."""

    rates: dict[str, list[Rate]]
    failed: dict[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """One mapping per loader: rates and our ratios to it, round by round."""
        ours = self.rates[OURS]
        return [
            {
                "loader": name,
                "rates": [rate.per_second for rate in rates],
                "cpu_rates": [rate.per_cpu_second for rate in rates],
                "ratios": [mine.per_second / its.per_second for mine, its in zip(ours, rates, strict=True)],
                "cpu_ratios": [mine.per_cpu_second / its.per_cpu_second for mine, its in zip(ours, rates, strict=True)],
            }
            for name, rates in self.rates.items()
        ]


def contest(
    names: Sequence[str], files: Sequence[Path], *, size: int, batch: int, threads: int, rounds: int
) -> Outcome:
    """One round to warm up, then `rounds`, each in the opposite order of the one before."""
    job = {"files": [str(path) for path in files], "size": size, "batch": batch, "threads": threads}
    outcome = Outcome({}, {})
    with contextlib.ExitStack() as stack:
        sides: dict[str, _Side] = {}
        for name in names:
            side = stack.enter_context(_side(name))
            answer = side.ask(job)
            if "failed" in answer:
                outcome.failed[name] = answer["failed"]
            else:
                sides[name] = side
        for number in range(rounds + 1):
            for name in list(sides) if number % 2 else list(reversed(sides)):
                answer = sides[name].ask({})
                if answer.get("images") != len(files):
                    outcome.failed[name] = (
                        answer.get("failed") or f"delivered {answer['images']} of {len(files)} images"
                    )
                    del sides[name]
                    outcome.rates.pop(name, None)
                elif number:
                    rate = Rate(answer["images"], answer["seconds"], answer["cpu_seconds"])
                    outcome.rates.setdefault(name, []).append(rate)
    if OURS not in outcome.rates:
        raise UserError(f"our own side did not run: {outcome.failed.get(OURS, 'it was left out')}")
    outcome.rates = {name: outcome.rates[name] for name in names if name in outcome.rates}
    return outcome


class _Side:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"failed": f"its process ended with {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def _side(name: str) -> Iterator[_Side]:
    command = of_module("conveyor.bench.loader_contest", name)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, **quiet},
    ) as process:  # fmt: skip
        try:
            yield _Side(process)
        finally:
            with contextlib.suppress(BrokenPipeError):
                if process.stdin is not None:
                    process.stdin.close()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _serve(name: str) -> None:
    """Answer the questions on standard input; what the libraries print goes elsewhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    job = json.loads(sys.stdin.readline())
    try:
        from conveyor.bench import loader_peers

        files = [Path(path) for path in job["files"]]
        deliver = loader_peers.available()[name](files, job["size"], job["batch"], job["threads"])
        answer({})
        for _ in sys.stdin:
            cpu = cpu_seconds()
            with Clock() as clock:
                images = deliver()
            time.sleep(_SETTLE)
            answer({"images": images, "seconds": clock.seconds, "cpu_seconds": cpu_seconds() - cpu})
    except Exception as error:
        answer({"failed": f"{type(error).__name__}: {error}"[:300]})


if __name__ == "__main__":
    _serve(sys.argv[1])
