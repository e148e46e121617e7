"""Several programs measured in one run: each in a process of its own, in alternating rounds, warm-up never timed.

A program is a command that reads one JSON request a line from standard input (`{"steps": n}`) and answers with one
JSON line (`{"seconds": s, "images": n}`); its first line, printed when it is ready and warm, is `{"ready": true}`,
optionally with the `versions` of its libraries.
A program that cannot run here says `{"unavailable": "why"}` and is listed as such, never silently left out.
"""

import contextlib
import json
import math
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from conveyor.files import parse_json

START_SECONDS = 600.0
ROUND_SECONDS = 900.0
GRACE_SECONDS = 5.0
START_SHARE = 0.7
"""Of a limited time: what may be spent on starting and warming up."""
FIRST_ROUNDS, FAR_BEHIND = 2, 0.8
"""After this many rounds a peer slower than this share of the best rate is not run again."""
NO_TIME = "left out for want of time"
Side = TypeVar("Side")


@dataclass(frozen=True, slots=True)
class Program:
    """A program to measure."""

    name: str
    command: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)
    threads: int | None = None
    """Of its libraries, where it has another number than the others."""
    first: str = ""
    """A line for its standard input before it is ready: what is too long for a command line."""


class UnavailableError(Exception):
    """The program cannot run on this machine."""


class Session:
    """The running process of one program."""

    def __init__(self, program: Program, threads: int | None, start_seconds: float = START_SECONDS) -> None:
        threads = program.threads or threads
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS") if threads is not None else ()
        limits = {name: str(threads) for name in names}
        env = {**os.environ, **limits, "TF_CPP_MIN_LOG_LEVEL": "3", **program.env}
        self.name = program.name
        try:
            self.process = subprocess.Popen(
                list(program.command),
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
        if program.first:
            self._write(program.first)
        self.ready = self._answer(start_seconds)
        """Its first line, with the versions of its libraries."""

    def ask(self, request: dict[str, Any], seconds: float = ROUND_SECONDS) -> dict[str, Any]:
        """The program's answer to any request that it knows."""
        self._write(json.dumps(request))
        return self._answer(seconds)

    def rate(self, request: dict[str, Any]) -> float:
        """Images per second of the answer."""
        answer = self.ask(request)
        return float(answer["images"] / answer["seconds"])

    def close(self) -> None:
        """End the process; its pipes are closed when their readers have seen the end."""
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            # The end of its input asks it to end: it may have to end workers of its own first.
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process.wait(GRACE_SECONDS)
        self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise UnavailableError(self._last_error()) from None

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
        """The next line with a JSON object; other output (of libraries) is ignored."""
        ends = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                self.close()
                raise UnavailableError(f"no answer within {seconds:.0f} s") from None
            if line is None:
                self.process.wait()
                self.close()
                raise UnavailableError(self._last_error())
            try:
                answer = parse_json(line)
            except ValueError:
                continue
            if not isinstance(answer, dict):
                continue
            if "unavailable" in answer:
                self.close()
                raise UnavailableError(str(answer["unavailable"]))
            return answer

    def _last_error(self) -> str:
        words = [line for line in self.errors if line.strip()]
        return words[-1].strip() if words else f"it ended with code {self.process.returncode}"


@dataclass(slots=True)
class Measured:
    """Images per second of every program, round by round, and the reasons of those that could not run."""

    rates: dict[str, list[float]]
    absent: dict[str, str]
    steps: int = 0
    """Steps of a round, as many as the time allows."""
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    """The versions that each program gave of its libraries."""
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The answer of each program in each of its rounds."""


def open_sessions(
    programs: Sequence[Program], threads: int | None, until: float = math.inf
) -> tuple[dict[str, Session], dict[str, str]]:
    """Start the programs, two at a time as starting mostly uses one core; those that cannot run here, with the reason.

    `until` is the time (`time.monotonic`) by which all should be ready.
    """
    sessions: dict[str, Session] = {}
    absent: dict[str, str] = {}

    def start(program: Program) -> None:
        limit = until - time.monotonic()
        try:
            if limit <= 0:
                raise UnavailableError(NO_TIME)
            sessions[program.name] = Session(program, threads, min(START_SECONDS, limit))
        except UnavailableError as error:
            absent[program.name] = str(error)

    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(start, programs))
    except BaseException:
        for session in sessions.values():
            session.close()
        raise
    return {each.name: sessions[each.name] for each in programs if each.name in sessions}, absent


def run_rounds(
    programs: Sequence[Program],
    *,
    rounds: int,
    steps: int,
    threads: int | None,
    seconds: float | None = None,
    peers: Sequence[str] = (),
    report: Callable[[str, int, float], None] = lambda name, number, rate: None,
    **more: Any,
) -> Measured:
    """Start all programs, then let them run in turn; idle ones wait on a pipe and use no core.

    `threads` is set for the libraries of all programs (None: it is not set); `more` goes into every request.

    With `seconds` steps and then rounds are lowered so that all end in about this time, but there are two rounds at
    least; a program for whose start no time is left is absent. One of the `peers` that is far slower than the best of
    them is left out of later rounds.
    """
    started = time.monotonic()
    until = math.inf if seconds is None else started + START_SHARE * seconds
    found, absent = open_sessions(programs, threads, until)
    sessions, dropped = list(found.values()), set[str]()
    measured = Measured({name: [] for name in found}, absent, steps)
    try:
        measured.versions |= {one.name: one.ready["versions"] for one in sessions if one.ready.get("versions")}
        if seconds is not None:
            left = seconds - (time.monotonic() - started)
            measured.steps = fitting_steps(left, _step_seconds(sessions, measured), rounds, steps)
        ended = time.monotonic()
        for number in range(rounds):
            begun, ended = ended, time.monotonic()
            if number >= FIRST_ROUNDS and seconds is not None and 2 * ended - begun > started + seconds:
                break  # another round like the last one would be too long
            for session in in_turn(sessions, number):
                # Left out for good: the rounds of two programs are compared by their numbers.
                if session.name in peers and not worth_another_round(measured.rates, session.name, peers):
                    dropped.add(session.name)
                if session.name in dropped:
                    continue
                answer = _round(session, measured.steps, measured, more)
                if answer is not None:
                    rate = float(answer["images"]) / float(answer["seconds"])
                    measured.rates[session.name].append(rate)
                    measured.answers.setdefault(session.name, []).append(answer)
                    report(session.name, number, rate)
    finally:
        for session in sessions:
            session.close()
    return measured


def _round(session: Session, steps: int, measured: Measured, more: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of one round; None for a program that is out, or fails now."""
    if session.name in measured.absent:
        return None
    try:
        return session.ask({"steps": steps, **more})
    except UnavailableError as error:
        measured.absent[session.name] = str(error)
        measured.answers.pop(session.name, None)
        del measured.rates[session.name]
        return None


def _step_seconds(sessions: Sequence[Session], measured: Measured) -> float:
    """Seconds of one step of every program together, from a round that is not counted."""
    started = time.monotonic()
    for session in sessions:
        _round(session, 1, measured, {})
    return time.monotonic() - started


def in_turn(sides: Collection[Side], number: int) -> list[Side]:
    """The sides in the order of a round: every other one runs in reverse, so that a machine that slows down favours none."""
    return list(sides) if number % 2 == 0 else list(sides)[::-1]


def fitting_steps(seconds: float, step_seconds: float, rounds: int, steps: int) -> int:
    """Steps of a round, at most those that are wanted, so that all rounds take at most `seconds`; one at least.

    >>> fitting_steps(100.0, 2.0, rounds=5, steps=3), fitting_steps(20.0, 2.0, rounds=5, steps=3)
    (3, 2)
    """
    return max(1, min(steps, int(seconds / max(step_seconds, 1e-9)) // rounds))


def worth_another_round(rates: Mapping[str, Sequence[float]], name: str, peers: Sequence[str]) -> bool:
    """Whether another round of this program could change the result: it is not far slower than the best of them.

    >>> rates = {"fast": [9.0, 10.0], "slow": [5.0, 5.0], "late": [5.0]}
    >>> [name for name in rates if worth_another_round(rates, name, list(rates))]
    ['fast', 'late']
    """
    if len(rates.get(name, ())) < FIRST_ROUNDS:
        return True
    return max(rates[name]) >= FAR_BEHIND * max(max(rates[peer]) for peer in peers if rates.get(peer))
