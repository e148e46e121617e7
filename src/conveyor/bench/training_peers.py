"""Training steps beside the loops one would write instead: same model, batch and threads, alternating rounds, one run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from conveyor.bench import limits
from conveyor.bench.lanes import Work
from conveyor.bench.peer_programs import contestant
from conveyor.bench.records import OURS, Record, Sample, make_record, ratios
from conveyor.errors import UserError
from conveyor.measure.rounds import Contestant, play
from conveyor.processes import of_module

OURS_IN_ONE = f"{OURS}, one process"


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
        contestant("plain PyTorch, channels_last", "plain_pytorch", {**base, "channels_last": True}),
        contestant("Lightning Trainer", "lightning_trainer", base, "lightning"),
        contestant("Keras on TensorFlow", "keras_training", {**base, "backend": "tensorflow"}, "keras"),
        contestant("Keras on JAX", "keras_training", {**base, "backend": "jax"}, "keras-jax"),
    ]


def _ours(setting: Setting, threads: int, base: dict[str, Any]) -> list[Contestant]:
    """The update as the planner would lay it out on a CPU, lanes of one thread that share the batch, and as one process."""
    if threads < 2 or setting.batch % threads:
        return [contestant(OURS, "conveyor_training", base)]
    work = Work(setting.model, setting.image_size, setting.batch // threads, threads)
    command = of_module("conveyor.bench.lanes", work.options(f"{threads}x1", 1).to_yaml())
    return [Contestant(OURS, command), contestant(OURS_IN_ONE, "conveyor_training", base)]


def peers(threads: int) -> list[str]:
    """The names of the loops beside ours."""
    return [each.name for each in contestants(SETTINGS[0], threads) if each.name not in (OURS, OURS_IN_ONE)]


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
    """Measure one setting: every contestant's rates, our ratios to them, and our shares of the machine's limits.

    `seconds` limits the time it takes, at the price of steps, rounds and, last, contestants.
    """
    found = [each for each in contestants(setting, threads) if not only or each.name in (OURS, OURS_IN_ONE, *only)]
    found[1:1] = limits.contestants(threads, products=5)
    steps = steps or setting.steps
    rivals = [each.name for each in found if each.name not in (OURS, OURS_IN_ONE, *limits.UNITS)]
    match = play(
        found, rounds=rounds, steps=steps, threads=threads, seconds=seconds, rivals=rivals,
        report=lambda name, number, rate: None if name in limits.UNITS else report(name, number, rate),
    )  # fmt: skip
    for name in (OURS, *limits.UNITS):
        if name not in match.rates:
            raise UserError(f"{setting.label}: our own side ({name}) could not run: {match.absent[name]}")
    roofs = {name: match.rates.pop(name) for name in limits.UNITS}
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
    return make_record(
        setting.label, results, kind="training", model=setting.model, image_size=setting.image_size, batch=setting.batch,
        threads=threads, rounds=len(match.rates[OURS]), steps=match.steps, absent=match.absent,
        versions=match.versions,
    )  # fmt: skip
