"""Conveyor beside its peers: the same model, batch and threads, alternating rounds, in one run."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conveyor.bench.lanes import Work
from conveyor.bench.limits import inference_flops, training_flops
from conveyor.bench.records import OURS, Record, Sample, make_record, ratios, share_of_gemm
from conveyor.bench.rounds import Contestant, play, script
from conveyor.errors import UserError

OURS_IN_ONE = f"{OURS}, one process"
GEMM = "GEMM"
"""The contestant that only multiplies matrices; it counts GFLOP instead of images."""
PEER_ENVIRONMENTS = "CONVEYOR_PEERS"
"""Folder with one virtual environment for each peer that cannot live beside ours: `$CONVEYOR_PEERS/keras/bin/python`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is run: a model at an image size, with a batch."""

    model: str
    image_size: int
    batch: int
    classes: int = 1000

    def label(self, kind: str) -> str:
        return f"{kind}-{self.model}-{self.image_size}px-b{self.batch}"


TRAINING = (Setting("resnet50", 224, 16), Setting("efficientnet-b0", 224, 16), Setting("resnet20", 32, 128, 10))
INFERENCE_BATCHES = {
    "resnet50": (1, 4, 16, 32, 64, 90),
    "resnext101": (1, 2, 4, 8, 16),
    "efficientnet-b0": (1, 8, 16, 32),
}
INFERENCE = tuple(Setting(model, 224, batch) for model, batches in INFERENCE_BATCHES.items() for batch in batches)


def training_contestants(setting: Setting, threads: int) -> list[Contestant]:
    """Ours first, then the loops that a user would write or take instead."""
    base = {
        "model": setting.model, "image_size": setting.image_size, "batch": setting.batch, "classes": setting.classes,
        "threads": threads,
    }  # fmt: skip
    return [
        *_our_training(setting, threads, base),
        _contestant("plain PyTorch, NCHW", "plain_pytorch", base),
        _contestant("plain PyTorch, channels_last", "plain_pytorch", {**base, "channels_last": True}),
        _contestant("Lightning Trainer", "lightning_trainer", base, "lightning"),
        _contestant("Keras on TensorFlow", "keras_training", {**base, "backend": "tensorflow"}, "keras"),
        _contestant("Keras on JAX", "keras_training", {**base, "backend": "jax"}, "keras-jax"),
    ]


def _our_training(setting: Setting, threads: int, base: dict[str, Any]) -> list[Contestant]:
    """The update as the planner would lay it out on a CPU, lanes of one thread that share the batch, and as one process."""
    if threads < 2 or setting.batch % threads:
        return [_contestant(OURS, "conveyor_training", base)]
    work = Work(setting.model, setting.image_size, setting.batch // threads, threads)
    command = [sys.executable, "-m", "conveyor.bench.lanes", work.options(f"{threads}x1", 1).to_yaml()]
    return [Contestant(OURS, command), _contestant(OURS_IN_ONE, "conveyor_training", base)]


def inference_contestants(setting: Setting, threads: int) -> list[Contestant]:
    """Ours first, then the engines that it chooses from, called directly, and Keras."""
    base = {"model": setting.model, "image_size": setting.image_size, "threads": threads}
    engines: dict[str, dict[str, Any]] = {
        OURS: {"engine": "conveyor"},
        "torch eager": {"engine": "torch"},
        "torch channels_last": {"engine": "torch", "channels_last": True},
        "ONNX Runtime": {"engine": "onnxruntime"},
        "OpenVINO": {"engine": "openvino"},
    }
    keras = {**base, "batch": setting.batch, "backend": "tensorflow"}
    return [
        *(
            _contestant(name, "inference", {**base, "batches": [setting.batch], **more})
            for name, more in engines.items()
        ),
        _contestant("Keras on TensorFlow", "keras_inference", keras, "keras"),
    ]


def compete(
    kind: str,
    setting: Setting,
    *,
    threads: int,
    rounds: int,
    steps: int | None = None,
    only: Sequence[str] = (),
    seconds: float | None = None,
    report: Callable[[str, int, float], None] = lambda name, number, rate: None,
) -> Record:
    """Measure one setting; the record holds every contestant's rates, our ratios to them, and our shares of the GEMM rate.

    A share counts the multiplications of the plain convolution: Winograd's filtering needs fewer and may exceed 100 %.
    `seconds` limits the time it takes, at the price of steps, rounds and, last, contestants.
    """
    makers = {"training": training_contestants, "inference": inference_contestants}
    contestants = [
        each for each in makers[kind](setting, threads) if not only or each.name in (OURS, OURS_IN_ONE, *only)
    ]
    contestants.insert(1, _contestant(GEMM, "gemm", {"threads": threads}))
    wanted = steps or default_steps(kind, setting)
    match = play(
        contestants, rounds=rounds, steps=wanted, threads=threads, seconds=seconds,
        report=lambda name, number, rate: None if name == GEMM else report(name, number, rate),
    )  # fmt: skip
    for name in (OURS, GEMM):
        if name not in match.rates:
            raise UserError(f"{setting.label(kind)}: our own side ({name}) could not run: {match.absent[name]}")
    roof = match.rates.pop(GEMM)
    results = {f"{name} rate": match.sample(name) for name in match.rates}
    for name in match.rates:
        if name != OURS:
            results[f"ratio to {name}"] = ratios(match.rates[OURS], match.rates[name])
    results[GEMM] = Sample("GFLOP/s", tuple(roof))
    percent = flops_per_image(kind, setting) / 1e7
    for name in (OURS, OURS_IN_ONE):
        if name in match.rates:
            shares = ratios(match.rates[name], roof).values
            results[share_of_gemm(name)] = Sample("%", tuple(share * percent for share in shares))
    return make_record(
        setting.label(kind), results, kind=kind, model=setting.model, image_size=setting.image_size, batch=setting.batch,
        threads=threads, rounds=rounds, steps=wanted, absent=match.absent,
    )  # fmt: skip


def flops_per_image(kind: str, setting: Setting) -> float:
    """Floating-point operations of one image, from the model's multiply-adds at the setting's image size."""
    from conveyor.models.units import multiply_adds

    macs = multiply_adds(setting.model, setting.image_size, setting.classes)
    return training_flops(macs) if kind == "training" else inference_flops(macs)


def default_steps(kind: str, setting: Setting) -> int:
    """Steps of a round: a few seconds of work."""
    pixels = setting.batch * setting.image_size**2
    per_step = 4e6 if kind == "training" else 2e7
    return max(1, round(per_step / pixels)) if setting.image_size > 64 else 10


def _contestant(name: str, program: str, asked: dict[str, Any], environment: str = "") -> Contestant:
    # A peer in an environment of its own still takes the network from here, if it wants it.
    env = {"PYTHONPATH": str(Path(__file__).parents[2])} if environment else {}
    return Contestant(name, [_python(environment), script(program), json.dumps(asked)], env)


def _python(environment: str) -> str:
    """The interpreter of a peer's own environment, if there is one; else ours."""
    return (environment and peer_python(environment)) or sys.executable


def peer_python(environment: str) -> str | None:
    """The interpreter of `$CONVEYOR_PEERS/<environment>`, if it exists."""
    folder = os.environ.get(PEER_ENVIRONMENTS)
    own = Path(folder) / environment / "bin" / "python" if folder else None
    return str(own) if own is not None and own.exists() else None
