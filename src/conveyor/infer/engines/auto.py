"""`--engine auto`: measure the engines for this model, batch and number of cores, and remember the fastest.

Several sources, the same model in several precisions, are measured in the same rounds.
"""

import dataclasses
import hashlib
import logging
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.errors import UserError, first_line
from conveyor.files import cache_folder
from conveyor.infer import AnswerPrecision
from conveyor.infer.engines.engine import Engine, Source, open_named, why_not
from conveyor.infer.machine import OtherWork
from conveyor.measure.processor import processor
from conveyor.measure.remembered import key_of, recall, remember, version
from conveyor.measure.rounds import in_turn
from conveyor.options.units import many

SECONDS = 3.0
"""Time for measuring all candidates together, after each has run once."""
MOST_SECONDS = 30.0
"""Time at most, where large batches need it to tell close candidates apart."""
LEAST_ROUNDS = 6
MOST_ROUNDS = 30
TURN = 0.03
"""Seconds of a candidate's turn, or one batch: after a rest the first batch wakes the engine's threads, and is not counted."""
FAR_BEHIND = 1.25
"""A candidate that took this many times as long as the best after two rounds is not run again."""
REST = 0.06
"""Seconds between two candidates: the threads of ONNX Runtime spin for 50 ms after a batch, and would slow the next one."""
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The engine that was chosen and what each candidate took."""

    engine: str
    milliseconds: dict[str, float]
    """Time of a batch by engine, or by precision and engine; empty when only one engine can run the model."""
    batch: int
    threads: int
    quiet: bool
    remembered: bool = False
    precision: AnswerPrecision = AnswerPrecision.FLOAT32
    asked: bool = False
    """Whether the user named the engine."""

    def fastest(self, precision: str) -> tuple[str, float] | None:
        """The engine for one of several precisions and its time; zero when it was the only candidate of all."""
        found = {
            name.partition(" ")[2]: value
            for name, value in self.milliseconds.items()
            if name.startswith(f"{precision} ")
        }
        if not self.milliseconds and precision == self.precision:
            found = {self.engine: 0.0}
        return min(found.items(), key=lambda entry: entry[1]) if found else None

    def text(self) -> str:
        """One line: what was chosen, against what, and whether it will be measured again."""
        what = f"engine {self.engine} for batch {self.batch} on {many(self.threads, 'core')}"
        if not self.milliseconds:
            return f"{what}: {'as asked' if self.asked else 'the only one that can run this model here'}"
        times = ", ".join(
            f"{name} {value:.1f} ms" for name, value in sorted(self.milliseconds.items(), key=lambda x: x[1])
        )
        if self.remembered:
            return f"{what} (measured before: {times})"
        return f"{what} ({times})" + (
            "" if self.quiet else "; measured under load, so it will be measured again next time"
        )


def choose(
    source: Source | Sequence[Source], *, batch: int, threads: int, engine: str = "auto", cache: Path | None = None
) -> Choice:
    """The fastest engine; measured, unless a choice made on a quiet machine is remembered.

    Of several sources the engine and its precision; `engine` leaves only the one of that name.
    """
    sources = [source] if isinstance(source, Source) else list(source)
    candidates = {
        name if len(sources) == 1 else f"{each.precision} {name}": (each, name)
        for each in sources
        for name in each.engines()
        if engine in ("auto", name) and (batch > 1 or not name.endswith("-per-core"))
    }
    if not candidates and engine != "auto":
        if any(engine in each.engines() for each in sources):
            whole = engine.removesuffix("-per-core")
            raise UserError(f"the engine {engine} deals a batch to the cores, and a batch has one image: take {whole}")
        raise UserError(why_not(sources[-1], engine))
    if not candidates:
        raise UserError("no installed engine can run this model: pip install 'conveyor[export]'")
    if len(candidates) == 1:
        only, name = next(iter(candidates.values()))
        return Choice(name, {}, batch, threads, quiet=True, precision=only.precision, asked=engine != "auto")
    cache = cache or cache_folder() / "engines.json"
    key = _key(sources, list(candidates), batch, threads)
    known = recall(cache, key)
    quiet = remembered = known is not None
    if known is not None:
        times = dict(known["milliseconds"])
    else:
        engines = _open_all(candidates, batch, threads)
        with OtherWork() as disturbance:
            times = measure(engines, batch)
        quiet = disturbance.quiet
        for opened in engines.values():
            opened.close()
    best = min(times, key=times.__getitem__)
    chosen, name = candidates[best]
    if quiet and not remembered:
        remember(cache, key, {"engine": best, "milliseconds": times, "time": time.time()})
    return Choice(name, times, batch, threads, quiet, remembered, chosen.precision)


def measure(engines: dict[str, Engine], batch: int, seconds: float = SECONDS) -> dict[str, float]:
    """Milliseconds of a batch by engine: the middle of its share of each round, times the least round.

    The engines run in turn, and every other round in reverse order, so that a machine whose speed drifts favours none:
    times are compared within a round. One that is far slower than the best after two rounds is not run again, so that
    the time goes to those that are close to each other.
    """
    shape = next(iter(engines.values())).image_shape
    images = np.random.default_rng(0).integers(0, 256, (batch, *shape), dtype=np.uint8)
    engines = {name: engine for name, engine in engines.items() if _runs(name, engine, images)}
    if not engines:
        raise UserError("none of the engines can run this model: see the messages above")
    taken: dict[str, list[float]] = {name: [] for name in engines}
    candidates = list(engines)
    start = time.perf_counter()
    for round_number in range(MOST_ROUNDS):
        passed = time.perf_counter() - start
        enough = passed > (seconds if round_number >= LEAST_ROUNDS else max(seconds, MOST_SECONDS))
        if round_number >= 2 and (enough or len(candidates) == 1):
            break
        for name in in_turn(candidates, round_number):
            time.sleep(REST)
            taken[name].append(1000 * _turn(engines[name], images))
        if round_number == 1:
            candidates = close_candidates(taken)
    return compared(taken, candidates)


def _turn(engine: Engine, images: NDArray[np.uint8]) -> float:
    """Seconds of a batch in a row of them, as a loaded engine runs; a long batch is a row of its own."""
    begun = time.perf_counter()
    engine(images)
    first = time.perf_counter()
    if first - begun > TURN:
        return first - begun
    count = 0
    while True:
        engine(images)
        count += 1
        if (now := time.perf_counter()) - first > TURN:
            return (now - first) / count


def _runs(name: str, engine: Engine, images: NDArray[np.uint8]) -> bool:
    """Whether it gives an answer, which also warms it up; one that does not is named and left out."""
    try:
        engine(images)
    except Exception as error:  # as in `_open_all`: the other engines can still be used
        _warn(name, error)
        return False
    return True


def _warn(name: str, error: Exception) -> None:
    _logger.warning("engine %s cannot run this model: %s", name, first_line(error))


def compared(taken: dict[str, list[float]], candidates: list[str]) -> dict[str, float]:
    """One time for each candidate from those of the rounds; of those that were dropped, the least.

    >>> compared({"a": [10.0, 24.0, 16.0], "b": [15.0, 20.0, 24.0], "c": [30.0, 31.0]}, ["a", "b"])
    {'a': 10.0, 'b': 15.0, 'c': 30.0}
    """
    rounds = list(zip(*(taken[name] for name in candidates), strict=True))
    least = min(min(times) for times in rounds)
    shares = {name: statistics.median(times[i] / min(times) for times in rounds) for i, name in enumerate(candidates)}
    best = min(shares.values())
    return {name: least * shares[name] / best if name in shares else min(values) for name, values in taken.items()}


def close_candidates(taken: dict[str, list[float]]) -> list[str]:
    """The candidates whose best time is less than `FAR_BEHIND` times the best of all."""
    best = min(min(values) for values in taken.values())
    return [name for name, values in taken.items() if min(values) < FAR_BEHIND * best or min(values) == best]


def _open_all(candidates: dict[str, tuple[Source, str]], batch: int, threads: int) -> dict[str, Engine]:
    """The candidates that open; one that fails on this model is named and left out."""
    engines: dict[str, Engine] = {}
    for label, (source, name) in candidates.items():
        try:
            engines[label] = open_named(source, name, batch=batch, threads=threads)
        except UserError:
            raise
        except Exception as error:  # a converter's own exception types are many; the other engines can still be used
            _warn(label, error)
    if not engines:
        raise UserError(f"none of the engines {', '.join(candidates)} can run this model: see the messages above")
    return engines


def _key(sources: Sequence[Source], candidates: Sequence[str], batch: int, threads: int) -> str:
    """Everything the choice depends on: structure of the model, batch, cores, processor, versions of the engines."""
    machine = f"{processor().name} {' '.join(processor().features)} x{os.cpu_count()}"
    parts: list[Any] = [list(candidates), batch, threads, machine]
    parts += [version(name) for name in ("torch", "onnxruntime", "openvino")]
    for source in sources:
        parts += [source.preprocessing.to_json(), source.batch, source.precision]
        if source.graph is not None:
            parts.append([(name, list(tensor.shape)) for name, tensor in source.graph.state_dict().items()])
            parts.append(str(getattr(source.graph.network, "code", type(source.graph.network).__name__)))
        else:
            file = source.onnx or source.openvino
            assert file is not None
            parts.append(hashlib.sha256(file.read_bytes()).hexdigest())
    return key_of(parts)
