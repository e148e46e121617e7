"""Several programs measured in one run: each in a process of its own, in alternating rounds, warm-up never timed.

A contestant is a command that reads one JSON request a line from standard input (`{"steps": n}`) and answers with one
JSON line (`{"seconds": s, "images": n}`); its first line, printed when it is ready and warm, is `{"ready": true}`.
A contestant that cannot run here says `{"unavailable": "why"}` and is listed as such, never silently left out.
"""

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conveyor.bench.records import Sample

START_SECONDS = 600.0
ROUND_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program that takes part."""

    name: str
    command: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)


class UnavailableError(Exception):
    """The contestant cannot run on this machine."""


class Session:
    """The running process of one contestant."""

    def __init__(self, contestant: Contestant, threads: int) -> None:
        limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")}
        env = {**os.environ, **limits, "TF_CPP_MIN_LOG_LEVEL": "3", **contestant.env}
        self.name = contestant.name
        try:
            self.process = subprocess.Popen(
                list(contestant.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
            )
        except OSError as error:
            raise UnavailableError(str(error)) from None
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.errors: list[str] = []
        self.readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self.readers:
            reader.start()
        self._answer(START_SECONDS)

    def round(self, steps: int) -> dict[str, Any]:
        """Run `steps` steps; returns the contestant's answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"steps": steps}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise UnavailableError(self._last_words()) from None
        return self._answer(ROUND_SECONDS)

    def close(self) -> None:
        """End the process; its pipes are closed when their readers have seen the end."""
        self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors = [*self.errors[-20:], line.rstrip()]

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next JSON line; other output (a library's chatter) is passed over."""
        while True:
            try:
                line = self.lines.get(timeout=seconds)
            except queue.Empty:
                self.close()
                raise UnavailableError(f"no answer within {seconds:g} s") from None
            if line is None:
                self.process.wait()
                self.close()
                raise UnavailableError(self._last_words())
            if not line.startswith("{"):
                continue
            answer: dict[str, Any] = json.loads(line)
            if "unavailable" in answer:
                self.close()
                raise UnavailableError(str(answer["unavailable"]))
            return answer

    def _last_words(self) -> str:
        words = [line for line in self.errors if line.strip()]
        return words[-1] if words else f"it ended with code {self.process.returncode}"


@dataclass(slots=True)
class Match:
    """Images per second of every contestant, round by round, and who could not take part."""

    rates: dict[str, list[float]]
    absent: dict[str, str]

    def sample(self, name: str) -> Sample:
        return Sample("img/s", tuple(self.rates[name]))

    def best(self) -> str:
        return max(self.rates, key=lambda name: self.sample(name).median)


def play(
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    steps: int,
    threads: int,
    report: Callable[[str, int, float], None] = lambda name, number, rate: None,
) -> Match:
    """Start all contestants, then let them run in turn; idle ones wait on a pipe and use no core."""
    match = Match({}, {})
    sessions: list[Session] = []
    try:
        for contestant in contestants:
            try:
                sessions.append(Session(contestant, threads))
                match.rates[contestant.name] = []
            except UnavailableError as error:
                match.absent[contestant.name] = str(error)
        for number in range(rounds):
            # Every other round runs backwards, so that a machine that slows down favours nobody.
            for session in sessions if number % 2 == 0 else reversed(sessions):
                if session.name in match.absent:
                    continue
                try:
                    answer = session.round(steps)
                except UnavailableError as error:
                    match.absent[session.name] = str(error)
                    del match.rates[session.name]
                    continue
                rate = answer["images"] / answer["seconds"]
                match.rates[session.name].append(rate)
                report(session.name, number, rate)
    finally:
        for session in sessions:
            session.close()
    return match


def script(name: str) -> str:
    """The path of a contestant's script that comes with the package."""
    return str(Path(__file__).parent / "peers" / f"{name}.py")
