"""Training steps compared with other training loops: same model, batch and threads, alternating rounds, one run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conveyor.bench import limits
from conveyor.bench.lanes import Work
from conveyor.bench.peer_programs import peer_program
from conveyor.bench.records import BEST_RATIO, OURS, Record, Sample, fastest, make_record, precision_of, ratio, sides
from conveyor.errors import UserError
from conveyor.infer import AnswerPrecision
from conveyor.measure.processor import multiplies_bfloat16
from conveyor.measure.rounds import Program, run_rounds
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


def programs(setting: Setting, threads: int) -> list[Program]:
    """Ours first, then the loops that a user would write or take instead."""
    base = {
        "model": setting.model, "image_size": setting.image_size, "batch": setting.batch, "classes": setting.classes,
        "threads": threads,
    }  # fmt: skip
    return [
        *_ours(setting, threads, base),
        peer_program("plain PyTorch, NCHW", "plain_pytorch", base),
        *_plain(base),
        peer_program("Lightning Trainer", "lightning_trainer", base, "lightning"),
        peer_program("Keras on TensorFlow", "keras_training", {**base, "backend": "tensorflow"}, "keras"),
        peer_program("Keras on JAX", "keras_training", {**base, "backend": "jax"}, "keras-jax"),
    ]


def _plain(base: dict[str, Any]) -> list[Program]:
    """The loop at its best memory format: in float32 and bfloat16, as it is and compiled."""
    last = {**base, "channels_last": True}
    ways = {
        "channels_last": {},
        "bfloat16 autocast": {"autocast": True},
        "torch.compile": {"compile": True},
        "torch.compile, bfloat16 autocast": {"compile": True, "autocast": True},
    }
    return [peer_program(f"plain PyTorch, {name}", "plain_pytorch", {**last, **way}) for name, way in ways.items()]


def _ours(setting: Setting, threads: int, base: dict[str, Any]) -> list[Program]:
    """Our update as the planner places it on a CPU (lanes of one thread that share the batch), and as one process."""
    half = peer_program(OURS_HALF, "conveyor_training", {**base, "precision": "bf16"})
    if threads < 2 or setting.batch % threads:
        return [peer_program(OURS, "conveyor_training", base), half]
    work = Work(setting.model, setting.image_size, setting.batch // threads, threads)
    options = work.options(f"{threads}x1", 1)
    lanes, half_lanes = (
        of_module("conveyor.bench.lanes", one.to_yaml()) for one in (options, options.replace(precision="bf16"))
    )
    return [
        Program(OURS, lanes),
        Program(OURS_HALF, half_lanes),
        peer_program(OURS_IN_ONE, "conveyor_training", base),
    ]


def peers(threads: int) -> list[str]:
    """The names of the loops beside ours."""
    return [each.name for each in programs(SETTINGS[0], threads) if each.name not in ALL_OURS]


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

    `seconds` limits the time it takes, by dropping steps, rounds and, last, programs. Where the processor has no bfloat16
    products, PyTorch's take minutes: neither they nor the loops that need them run, unless `only` names one.
    """
    native = multiplies_bfloat16()
    usual = [
        each.name
        for each in programs(setting, threads)
        if native or precision_of(each.name) != AnswerPrecision.BFLOAT16
    ]
    found = [each for each in programs(setting, threads) if each.name in (*ALL_OURS, *(only or usual))]
    products = {"threads": threads, "products": 5}
    found[1:1] = [
        *limits.programs(threads, products=5),
        *([peer_program(HALF_GEMM, "gemm", {**products, "half": True})] if native else []),
    ]
    steps = steps or setting.steps
    limit_units = limits.UNITS | {HALF_GEMM: limits.UNITS[limits.GEMM]}
    others = [each.name for each in found if each.name not in (*ALL_OURS, *limit_units)]
    measured = run_rounds(
        found, rounds=rounds, steps=steps, threads=threads, seconds=seconds, peers=others,
        report=lambda name, number, rate: None if name in limit_units else report(name, number, rate),
    )  # fmt: skip
    for name in (OURS, *limits.UNITS):
        if name not in measured.rates:
            raise UserError(f"{setting.label}: our own side ({name}) could not run: {measured.absent[name]}")
    limit_rates = {name: measured.rates.pop(name) for name in limits.UNITS}
    half_rates = measured.rates.pop(HALF_GEMM, None)
    samples = {name: Sample("img/s", tuple(rates)) for name, rates in measured.rates.items()}
    results = {f"{name} rate": sample for name, sample in samples.items()}
    results |= {f"ratio to {name}": ratio(samples[OURS], one) for name, one in samples.items() if name != OURS}
    results |= {name: Sample(limits.UNITS[name], tuple(rates)) for name, rates in limit_rates.items()}
    needs = limits.needs(setting.model, setting.image_size, setting.classes, training=True)
    for name in (OURS, OURS_IN_ONE):
        if name in measured.rates:
            results |= needs.shares(name, measured.rates[name], limit_rates)
    if half_rates is not None and OURS_HALF in measured.rates:
        results[HALF_GEMM] = Sample(limit_units[HALF_GEMM], tuple(half_rates))
        results |= needs.shares(OURS_HALF, measured.rates[OURS_HALF], {HALF_GEMM: half_rates})
    results |= _best(samples)
    return make_record(
        setting.label, results, kind="training", model=setting.model, image_size=setting.image_size, batch=setting.batch,
        threads=threads, rounds=len(measured.rates[OURS]), steps=measured.steps, absent=measured.absent,
        versions=measured.versions,
    )  # fmt: skip


def _best(samples: Mapping[str, Sample]) -> dict[str, Sample]:
    """Our fastest program and the fastest of the others, each in its fastest precision, in the rounds that both ran."""
    ours, others = sides(samples)
    if not others:
        return {}
    best, other = fastest(ours), fastest(others)
    return {f"{BEST_RATIO} ({best} / {other})": ratio(samples[best], samples[other])}
