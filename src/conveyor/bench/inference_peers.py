"""Conveyor's engine compared with torch, ONNX Runtime, OpenVINO and TensorFlow at every batch size, in one run.

Ours runs in each precision, and so does every peer that has it: the fastest of ours is compared with the fastest of
them, and ours in each precision with the best peer in the same.

Every program is one process and they take turns. The turns are short and many: the speed of a shared machine varies
from second to second, and neighbouring turns see nearly the same speed. A program far slower than the best shows that
in its first rounds and skips the others.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psutil

from conveyor.bench import limits
from conveyor.bench.peer_programs import peer_program
from conveyor.bench.records import (
    OURS,
    Record,
    Sample,
    alike,
    fastest,
    is_ours,
    make_record,
    precision_of,
    ratio,
    sides,
)
from conveyor.errors import UserError
from conveyor.infer import PRECISIONS, AnswerPrecision
from conveyor.infer.engines.auto import REST
from conveyor.infer.machine import busy_seconds
from conveyor.layout import usable_cores
from conveyor.measure.processor import multiplies_bfloat16
from conveyor.measure.rounds import (
    NO_TIME,
    START_SECONDS,
    Program,
    Session,
    UnavailableError,
    in_turn,
    open_sessions,
    worth_another_round,
)

BATCHES = {"efficientnet-b0": (1, 8, 16, 32), "resnext101": (1, 2, 4, 8, 16), "resnet50": (1, 4, 16, 32, 64, 80, 90)}
"""The published lists of batch sizes; the model whose list costs least comes first."""
ENGINES: dict[str, dict[str, Any]] = {
    **{f"{OURS} {precision}": {"engine": "conveyor", "precision": precision} for precision in PRECISIONS},
    "ONNX Runtime": {"engine": "onnxruntime"},
    "ONNX Runtime int8": {"engine": "onnxruntime", "precision": "int8"},
    "OpenVINO": {"engine": "openvino"},
    "OpenVINO bfloat16": {"engine": "openvino", "precision": "bfloat16"},
    "OpenVINO int8": {"engine": "openvino", "precision": "int8"},
    "torch eager": {"engine": "torch"},
    "torch channels_last": {"engine": "torch", "channels_last": True},
    "torch channels_last bfloat16": {"engine": "torch", "channels_last": True, "precision": "bfloat16"},
    "torch compiled, frozen": {"engine": "torch", "channels_last": True, "compile": True},
    "torch compiled, frozen bfloat16": {
        "engine": "torch", "channels_last": True, "compile": True, "precision": "bfloat16"
    },
}  # fmt: skip
"""A peer without a precision in its name computes in float32."""
KERAS = "Keras on TensorFlow"
PEERS = (*(name for name in ENGINES if not name.startswith(OURS)), KERAS)
MOST_ROUNDS = 400
BEST = "ratio to the best"
AT = "ratio at"
"""Ours to the best peer, both in the precision that follows."""
BEST_CPU = "ratio to the best by processor time"
"""The same per second of the programs' own processor time, which other programs disturb less."""


def programs(model: str, *, image_size: int, threads: int, folder: str, only: Sequence[str] = ()) -> list[Program]:
    """Ours and the peers in `only` (empty: all), each as a command."""
    base = {"model": model, "image_size": image_size, "threads": threads, "folder": folder}
    found = [peer_program(name, "inference", {**base, **more}) for name, more in ENGINES.items()]
    found.append(peer_program(KERAS, "keras_inference", {**base, "backend": "tensorflow"}, "keras"))
    half = multiplies_bfloat16()
    fitting = [each for each in found if half or precision_of(each.name) != AnswerPrecision.BFLOAT16]
    return [each for each in fitting if is_ours(each.name) or not only or each.name in only]


@dataclass
class Rates:
    """Every program's images per second and per processor second, by round; a peer that is out has fewer rounds."""

    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    limit_rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in limits.UNITS})
    """The machine's limits in the same rounds."""
    dropped: set[str] = field(default_factory=set)

    def worth_another_round(self, name: str) -> bool:
        """Whether another round of this program could change the result.

        Once it could not, it never runs again: round i of one program is compared with round i of another, so no round
        may be skipped in between. A peer is compared with the peers of its own precision.
        """
        same = [peer for peer in self.wall if not is_ours(peer) and precision_of(peer) == precision_of(name)]
        if not is_ours(name) and not worth_another_round(self.wall, name, same):
            self.dropped.add(name)
        return name not in self.dropped

    def results(self, needs: limits.Needs) -> dict[str, Sample]:
        wall, cpu = (
            {name: Sample("img/s", tuple(rates)) for name, rates in found.items()} for found in (self.wall, self.cpu)
        )
        ours, peers = sides(wall)
        best = fastest(ours)
        found = {f"{name} rate": sample for name, sample in wall.items()}
        found[f"{OURS} rate"] = wall[best]
        found |= {f"ratio to {name}": ratio(wall[best], sample) for name, sample in peers.items()}
        if peers:
            other = fastest(peers)
            found[BEST], found[BEST_CPU] = ratio(wall[best], wall[other]), ratio(cpu[best], cpu[other])
        for name, sample in ours.items():
            if name != OURS and (same := alike(peers, name)):
                found[f"{AT} {precision_of(name)}"] = ratio(sample, same[fastest(same)])
        found |= {name: Sample(limits.UNITS[name], tuple(rates)) for name, rates in self.limit_rates.items()}
        plain = f"{OURS} float32" if f"{OURS} float32" in wall else best
        return found | needs.shares(OURS, self.wall[plain], self.limit_rates)


def measure(
    model: str,
    batches: Sequence[int],
    *,
    rounds: int,
    turn: float = 0.1,
    seconds: float = 0.0,
    prepare_seconds: float = 300.0,
    image_size: int = 224,
    threads: int | None = None,
    only: Sequence[str] = (),
    report: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """One record per batch size: every program's rates, our ratio to each peer, and to the best peer of each round.

    A turn lasts `turn` seconds or one batch. There are `rounds` rounds, and more as long as `seconds` have not passed,
    which all batch sizes share. A peer that takes more than `prepare_seconds` to get ready for a batch is out of the
    rest.
    """
    threads = threads or usable_cores()
    with tempfile.TemporaryDirectory() as scratch:
        found = programs(model, image_size=image_size, threads=threads, folder=scratch, only=only)
        needs = limits.needs(model, image_size, 1000, training=False)
        sessions, absent = open_sessions(found, threads)
        limit_sessions: dict[str, Session] = {}
        try:
            limit_sessions |= {each.name: Session(each, threads) for each in limits.programs(threads)}
            if not any(map(is_ours, sessions)):
                raise UserError(
                    f"our own side could not run: {next(why for name, why in absent.items() if is_ours(name))}"
                )
            records = []
            end = time.monotonic() + seconds
            for number, batch in enumerate(batches):
                share_end = time.monotonic() + max(0.0, end - time.monotonic()) / (len(batches) - number)
                chosen = _prepare(sessions, absent, batch, prepare_seconds)
                before = _clock(sessions, limit_sessions)
                rates = _run_rounds(sessions, absent, limit_sessions, rounds=rounds, turn=turn, end=share_end)
                records.append(
                    make_record(
                        f"inference-{model}-{image_size}px-b{batch}", rates.results(needs),
                        kind="inference", model=model, batch=batch, image_size=image_size, threads=threads, turn=turn,
                        absent=dict(absent), chosen=chosen, others_cores=_others(before, _clock(sessions, limit_sessions)),
                        versions={name: one.ready.get("versions", {}) for name, one in sessions.items()},
                    )
                )  # fmt: skip
                report(records[-1])
            return records
        finally:
            for session in (*sessions.values(), *limit_sessions.values()):
                session.close()


def _run_rounds(
    sessions: dict[str, Session],
    absent: dict[str, str],
    limit_sessions: dict[str, Session],
    *,
    rounds: int,
    turn: float,
    end: float,
) -> Rates:
    """The rounds of one batch size; every other one runs backwards. A peer that fails is out of the rest."""
    rates = Rates({name: [] for name in sessions}, {name: [] for name in sessions})
    number = 0
    while number < rounds or (number < MOST_ROUNDS and time.monotonic() < end):
        names = in_turn(sessions, number)
        number += 1
        for name in filter(rates.worth_another_round, names):
            time.sleep(REST)
            try:
                answer = sessions[name].ask({"seconds": turn})
            except UnavailableError as error:
                _drop(name, str(error), sessions, absent)
                del rates.wall[name], rates.cpu[name]
                if not any(map(is_ours, sessions)):
                    raise UserError(f"our own side failed: {error}") from None
                continue
            rates.wall[name].append(answer["images"] / answer["seconds"])
            rates.cpu[name].append(answer["images"] / answer["cpu_seconds"])
        for name, session in limit_sessions.items():
            rates.limit_rates[name].append(session.rate({"steps": 1}))
    return rates


def _drop(name: str, why: str, sessions: dict[str, Session], absent: dict[str, str]) -> None:
    sessions.pop(name).close()
    absent[name] = why


def _prepare(sessions: dict[str, Session], absent: dict[str, str], batch: int, seconds: float) -> dict[str, str]:
    """Prepare every program for a batch; those that fail or take too long are out. Returns the engines that we chose.

    Ours go first, one by one, because they may measure engines; the others two at a time.
    """
    chosen: dict[str, str] = {}
    for name in [name for name in sessions if is_ours(name)]:
        try:
            chosen[name] = str(sessions[name].ask({"prepare": batch}, START_SECONDS)["chosen"])
        except UnavailableError as error:
            _drop(name, str(error), sessions, absent)
    if not chosen:
        why = next(why for name, why in absent.items() if is_ours(name))
        raise UserError(f"our own side could not get ready for a batch of {batch}: {why}")
    end = time.monotonic() + seconds

    def prepare(name: str) -> None:
        try:
            if time.monotonic() >= end:
                raise UnavailableError(NO_TIME)
            sessions[name].ask({"prepare": batch}, end - time.monotonic())
        except UnavailableError as error:
            _drop(name, str(error), sessions, absent)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(prepare, [name for name in sessions if not is_ours(name)]))
    return chosen


def _clock(*parties: Mapping[str, Session]) -> tuple[float, float, float]:
    """(seconds, processor seconds of the whole machine, those of our programs)."""
    own = [psutil.Process(session.process.pid).cpu_times() for party in parties for session in party.values()]
    return time.monotonic(), busy_seconds(), sum(each.user + each.system for each in own)


def _others(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    """Cores that other programs used meanwhile: with more than about a tenth the figures are unreliable."""
    elapsed, busy, own = (new - old for new, old in zip(after, before, strict=True))
    return round(max(0.0, busy - own) / max(elapsed, 1e-3), 2)


def text(record: Record) -> str:
    """One line: ours, theirs, the ratio."""
    rates = ", ".join(
        f"{name.removesuffix(' rate')} {sample.median:.2f} ({sample.low:.2f}..{sample.high:.2f}, n={sample.n})"
        for name, sample in record.results.items()
        if name.endswith(" rate")
    )
    ratio = "".join(f"; {name}: {record.results[name]}" for name in record.results if name.startswith((BEST, AT)))
    said = record.conditions
    chosen = ", ".join(f"{name} took {engine}" for name, engine in said["chosen"].items())
    ratio += "".join(f"; {name} did not run ({why})" for name, why in said["absent"].items())
    return f"{record.name}: {rates} img/s{ratio}; {chosen}; others used {said['others_cores']} cores"
