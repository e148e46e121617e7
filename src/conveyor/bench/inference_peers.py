"""Conveyor's engine beside torch, ONNX Runtime and OpenVINO called directly, at every batch size, in one run.

`python -m conveyor.bench.inference_peers resnet50 --batch 1 4 16 --minutes 1 --out benchmarks` writes one record for each
batch size. Every contestant is one process that keeps all batch sizes warm; they take turns. The turns are short and many:
the speed of a shared machine wanders from second to second, and neighbouring turns see the same of it.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from conveyor.bench.compete import INFERENCE_BATCHES
from conveyor.bench.records import OURS, Record, Sample, make_record, ratios
from conveyor.bench.rounds import Contestant, Session, UnavailableError, script
from conveyor.errors import UserError
from conveyor.infer.machine import busy_seconds
from conveyor.layout import usable_cores

PEERS: dict[str, dict[str, Any]] = {
    OURS: {"engine": "conveyor"},
    "torch channels_last": {"engine": "torch", "channels_last": True},
    "torch compiled, frozen": {"engine": "torch", "channels_last": True, "compile": True},
    "ONNX Runtime": {"engine": "onnxruntime"},
    "OpenVINO": {"engine": "openvino"},
}
MOST_ROUNDS = 400
BEST = "ratio to the best"
BEST_CPU = "ratio to the best by processor time"
"""The same per second of the contestants' own processor time, which other programs disturb less."""


class BatchSession(Session):
    """A contestant that is told the batch of each round."""

    def timed(self, batch: int, seconds: float) -> tuple[float, float]:
        """Images per second and per processor second at `batch`, run for `seconds` and at least once.

        Before a short turn one batch goes through untimed: it wakes the threads and brings the weights back to the cache.
        """
        answer = self.ask({"batch": batch, "seconds": seconds})
        return float(answer["images"] / answer["seconds"]), float(answer["images"] / answer["cpu_seconds"])


def contestants(
    model: str, batches: Sequence[int], *, image_size: int, threads: int, folder: str, only: Sequence[str] = ()
) -> list[Contestant]:
    """Ours and those of `only` (all without a wish), each as a command."""
    base = {"model": model, "batches": list(batches), "image_size": image_size, "threads": threads, "folder": folder}
    return [
        Contestant(name, [sys.executable, script("inference"), json.dumps({**base, **more})])
        for name, more in PEERS.items()
        if name == OURS or not only or name in only
    ]


def open_sessions(found: Sequence[Contestant], threads: int) -> tuple[dict[str, BatchSession], dict[str, str]]:
    """Start the contestants; those that cannot run are named.

    The first one, ours, starts alone because it may measure engines; the others two at a time, since starting is mostly
    work of one core.
    """
    sessions: dict[str, BatchSession] = {}
    absent: dict[str, str] = {}

    def start(contestant: Contestant) -> None:
        try:
            sessions[contestant.name] = BatchSession(contestant, threads)
        except UnavailableError as error:
            absent[contestant.name] = str(error)

    start(found[0])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(start, found[1:]))
    return {each.name: sessions[each.name] for each in found if each.name in sessions}, absent


def measure(
    model: str,
    batches: Sequence[int],
    *,
    rounds: int,
    turn: float = 0.1,
    seconds: float = 0.0,
    image_size: int = 224,
    threads: int | None = None,
    only: Sequence[str] = (),
    folder: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> list[Record]:
    """One record per batch size: everybody's rates, our ratio to each peer, and to the best peer of each round.

    A turn lasts `turn` seconds or one batch. There are `rounds` rounds, and more as long as `seconds` have not passed.
    """
    threads = threads or usable_cores()
    with tempfile.TemporaryDirectory() as scratch:
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
        found = contestants(model, batches, image_size=image_size, threads=threads, folder=folder or scratch, only=only)
        sessions, absent = open_sessions(found, threads)
        try:
            if OURS not in sessions:
                raise UserError(f"our own side could not run: {absent[OURS]}")
            records = []
            for batch in batches:
                rates: dict[str, list[float]] = {name: [] for name in sessions}
                per_cpu: dict[str, list[float]] = {name: [] for name in sessions}
                before = _clock(sessions)
                end = time.monotonic() + seconds
                for number in itertools.count():
                    if number >= rounds and (time.monotonic() >= end or number >= MOST_ROUNDS):
                        break
                    names = list(sessions) if number % 2 == 0 else list(reversed(sessions))
                    for name in names:
                        rate, cpu_rate = sessions[name].timed(batch, turn)
                        rates[name].append(rate)
                        per_cpu[name].append(cpu_rate)
                others = _others(before, _clock(sessions))
                records.append(
                    _record(
                        model, batch, rates, per_cpu, absent, image_size=image_size, threads=threads, turn=turn,
                        others_cores=others, chosen=sessions[OURS].ready.get("chosen", {}).get(str(batch)),
                    )
                )  # fmt: skip
                report(text(records[-1]))
            return records
        finally:
            for session in sessions.values():
                session.close()


def _clock(sessions: dict[str, BatchSession]) -> tuple[float, float, float]:
    """(seconds, processor seconds of the whole machine, those of the contestants)."""
    own = [psutil.Process(session.process.pid).cpu_times() for session in sessions.values()]
    return time.monotonic(), busy_seconds(), sum(each.user + each.system for each in own)


def _others(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    """Cores that other programs used meanwhile: more than a tenth or so, and the figures are not worth much."""
    elapsed, busy, own = (new - old for new, old in zip(after, before, strict=True))
    return round(max(0.0, busy - own) / max(elapsed, 1e-3), 2)


def _record(
    model: str,
    batch: int,
    rates: dict[str, list[float]],
    per_cpu: dict[str, list[float]],
    absent: dict[str, str],
    **conditions: Any,
) -> Record:
    results = {f"{name} rate": Sample("img/s", tuple(values)) for name, values in rates.items()}
    peers = [name for name in rates if name != OURS]
    for name in peers:
        results[f"ratio to {name}"] = ratios(rates[OURS], rates[name])
    if peers:
        results[BEST] = ratios(rates[OURS], rates[best_peer(rates)])
        results[BEST_CPU] = ratios(per_cpu[OURS], per_cpu[best_peer(rates)])
    label = f"inference-{model}-{conditions['image_size']}px-b{batch}"
    return make_record(label, results, kind="inference", model=model, batch=batch, absent=absent, **conditions)


def best_peer(rates: dict[str, list[float]]) -> str:
    """The peer with the highest median rate."""
    return max((name for name in rates if name != OURS), key=lambda name: Sample("img/s", tuple(rates[name])).median)


def text(record: Record) -> str:
    """One line: ours, theirs, the ratio."""
    rates = ", ".join(
        f"{name.removesuffix(' rate')} {sample.median:.2f} ({sample.low:.2f}..{sample.high:.2f})"
        for name, sample in record.results.items()
        if name.endswith(" rate")
    )
    ratio = "".join(f"; {name}: {record.results[name]}" for name in (BEST, BEST_CPU) if name in record.results)
    said = record.conditions
    ratio += "".join(f"; {name} did not run ({why})" for name, why in said["absent"].items())
    return f"{record.name}: {rates} img/s{ratio}; chosen {said.get('chosen')}, others used {said.get('others_cores')} cores"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conveyor.bench.inference_peers")
    parser.add_argument("model", choices=sorted(INFERENCE_BATCHES))
    parser.add_argument("--batch", nargs="+", type=int, help="default: the model's published list")
    parser.add_argument("--rounds", type=int, default=5, help="at least [5]")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each batch size, filled with rounds [1]")
    parser.add_argument("--turn", type=float, default=0.1, help="seconds of a turn, at least one batch [0.1]")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", nargs="+", default=[], choices=sorted(PEERS))
    parser.add_argument("--folder", help="where the peers' ONNX files are kept between runs")
    parser.add_argument("--out", type=Path, help="folder whose records/ gets the records")
    asked = parser.parse_args()
    records = measure(
        asked.model, asked.batch or INFERENCE_BATCHES[asked.model], rounds=asked.rounds, turn=asked.turn,
        seconds=60 * asked.minutes,
        image_size=asked.image_size, threads=asked.threads, only=asked.only, folder=asked.folder,
        report=lambda line: print(line, flush=True),
    )  # fmt: skip
    for record in records if asked.out else ():
        record.save(asked.out / "records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
