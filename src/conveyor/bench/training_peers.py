"""Training steps compared with other training loops: same model, batch and threads, alternating rounds, one run."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conveyor.bench import limits
from conveyor.bench.lanes import Work
from conveyor.bench.peer_programs import contestant
from conveyor.bench.records import BEST_RATIO, OURS, Record, Sample, make_record, ratios
from conveyor.errors import UserError
from conveyor.measure.rounds import Contestant, play
from conveyor.processes import of_module

OURS_IN_ONE = f"{OURS}, one process"
OURS_HALF = f"{OURS}, bfloat16"
ALL_OURS = (OURS, OURS_IN_ONE, OURS_HALF)
HALF_GEMM = "bfloat16 GEMM"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is run: a model at an image size, with a batch."""

    model: str
    image_size: int
    batch: int
    classes: int = 1000

    @property
    def label(self) -> str:
        return f"training-{self.model}-{self.image_size}px-b{self.batch}"

    @property
    def steps(self) -> int:
        """Steps of a round: a few seconds of work."""
        return max(1, round(4e6 / (self.batch * self.image_size**2))) if self.image_size > 64 else 10


SETTINGS = (Setting("resnet50", 224, 16), Setting("efficientnet-b0", 224, 16), Setting("resnet20", 32, 128, 10))


def contestants(setting: Setting, threads: int) -> list[Contestant]:
    """Ours first, then the loops that a user would write or take instead."""
    base = {
        "model": setting.model, "image_size": setting.image_size, "batch": setting.batch, "classes": setting.classes,
        "threads": threads,
    }  # fmt: skip
    return [
        *_ours(setting, threads, base),
        contestant("plain PyTorch, NCHW", "plain_pytorch", base),
        *_plain(base),
        contestant("Lightning Trainer", "lightning_trainer", base, "lightning"),
        contestant("Keras on TensorFlow", "keras_training", {**base, "backend": "tensorflow"}, "keras"),
        contestant("Keras on JAX", "keras_training", {**base, "backend": "jax"}, "keras-jax"),
    ]


def _plain(base: dict[str, Any]) -> list[Contestant]:
    """The loop at its best memory format: in float32 and bfloat16, as it is and compiled."""
    last = {**base, "channels_last": True}
    ways = {
        "channels_last": {},
        "bfloat16 autocast": {"autocast": True},
        "torch.compile": {"compile": True},
        "torch.compile, bfloat16 autocast": {"compile": True, "autocast": True},
    }
    return [contestant(f"plain PyTorch, {name}", "plain_pytorch", {**last, **way}) for name, way in ways.items()]


def _ours(setting: Setting, threads: int, base: dict[str, Any]) -> list[Contestant]:
    """Our update as the planner places it on a CPU (lanes of one thread that share the batch), and as one process."""
    half = contestant(OURS_HALF, "conveyor_training", {**base, "precision": "bf16"})
    if threads < 2 or setting.batch % threads:
        return [contestant(OURS, "conveyor_training", base), half]
    work = Work(setting.model, setting.image_size, setting.batch // threads, threads)
    options = work.options(f"{threads}x1", 1)
    lanes, half_lanes = (
        of_module("conveyor.bench.lanes", one.to_yaml()) for one in (options, options.replace(precision="bf16"))
    )
    return [
        Contestant(OURS, lanes),
        Contestant(OURS_HALF, half_lanes),
        contestant(OURS_IN_ONE, "conveyor_training", base),
    ]


def peers(threads: int) -> list[str]:
    """The names of the loops beside ours."""
    return [each.name for each in contestants(SETTINGS[0], threads) if each.name not in ALL_OURS]


def measure(
    setting: Setting,
    *,
    threads: int,
    rounds: int,
    steps: int | None = None,
    only: Sequence[str] = (),
    seconds: float | None = None,
    report: Callable[[str, int, float], None] = lambda name, number, rate: None,
) -> Record:
    """Measure one setting: every program's rates, our ratios to them, and our shares of the machine's limits.

    `seconds` limits the time it takes, by dropping steps, rounds and, last, programs.
    """
    found = [each for each in contestants(setting, threads) if not only or each.name in (*ALL_OURS, *only)]
    has_half = any(each.name == OURS_HALF for each in found)
    products = {"threads": threads, "products": 5}
    found[1:1] = [
        *limits.contestants(threads, products=5),
        *([contestant(HALF_GEMM, "gemm", {**products, "half": True})] if has_half else []),
    ]
    steps = steps or setting.steps
    roof_units = limits.UNITS | {HALF_GEMM: limits.UNITS[limits.GEMM]}
    rivals = [each.name for each in found if each.name not in (*ALL_OURS, *roof_units)]
    match = play(
        found, rounds=rounds, steps=steps, threads=threads, seconds=seconds, rivals=rivals,
        report=lambda name, number, rate: None if name in roof_units else report(name, number, rate),
    )  # fmt: skip
    for name in (OURS, *limits.UNITS):
        if name not in match.rates:
            raise UserError(f"{setting.label}: our own side ({name}) could not run: {match.absent[name]}")
    roofs = {name: match.rates.pop(name) for name in limits.UNITS}
    half_roof = match.rates.pop(HALF_GEMM, None)
    results = {f"{name} rate": Sample("img/s", tuple(rates)) for name, rates in match.rates.items()}
    for name in match.rates:
        if name != OURS:
            theirs = match.rates[name]
            results[f"ratio to {name}"] = ratios(match.rates[OURS][: len(theirs)], theirs)
    results |= {name: Sample(limits.UNITS[name], tuple(rates)) for name, rates in roofs.items()}
    needs = limits.needs(setting.model, setting.image_size, setting.classes, training=True)
    for name in (OURS, OURS_IN_ONE):
        if name in match.rates:
            results |= needs.shares(name, match.rates[name], roofs)
    if half_roof is not None and OURS_HALF in match.rates:
        results[HALF_GEMM] = Sample(roof_units[HALF_GEMM], tuple(half_roof))
        results |= needs.shares(OURS_HALF, match.rates[OURS_HALF], {HALF_GEMM: half_roof})
    results |= _best(match.rates, rivals)
    return make_record(
        setting.label, results, kind="training", model=setting.model, image_size=setting.image_size, batch=setting.batch,
        threads=threads, rounds=len(match.rates[OURS]), steps=match.steps, absent=match.absent,
        versions=match.versions,
    )  # fmt: skip


def _best(rates: Mapping[str, Sequence[float]], rivals: Sequence[str]) -> dict[str, Sample]:
    """Our fastest program and the fastest of the others, each in its fastest precision, in the rounds that both ran."""
    ours, others = ([name for name in names if name in rates] for names in (ALL_OURS, rivals))
    if not others:
        return {}
    best, fastest = (max(names, key=lambda name: statistics.median(rates[name])) for names in (ours, others))
    shared = min(len(rates[best]), len(rates[fastest]))
    return {f"{BEST_RATIO} ({best} / {fastest})": ratios(rates[best][:shared], rates[fastest][:shared])}
