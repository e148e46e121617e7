"""`conveyor validate` without real images: how fast the model answers, with the fastest engine for it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from conveyor.infer import AnswerPrecision
from conveyor.infer.engines.engine import Source, open_engine
from conveyor.infer.load import from_options, load
from conveyor.infer.loaded import Loaded
from conveyor.infer.quantize import int8_file
from conveyor.infer.throughput import Measured, Repeat, measure
from conveyor.infer.validated import scores
from conveyor.layout import usable_cores
from conveyor.measure.latency import Latency
from conveyor.measure.processor import weight_bits
from conveyor.numerics.precision import Precision
from conveyor.options import Options
from conveyor.options.units import many

REPEAT_SECONDS = 1.0
"""A repeat lasts this long when `--max-validation-images` does not say how many images it has."""


def applies(options: Options) -> bool:
    """Whether a validation has no real images and runs on the processor, so that only its speed has a meaning."""
    if not (options.data.generated_data or options.data.synthetic_data) or options.layout.device == "cuda":
        return False
    if options.layout.device == "cpu":
        return True
    import torch

    return not torch.cuda.is_available()


def measure_options(
    options: Options,
    *,
    engine: str = "auto",
    precision: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Measured, list[dict[str, Any]]]:
    """Throughput and latency of the model that the options name, and one validation record per repeat.

    Replicas become engines side by side, as many as there are cores. Accuracy and loss in the records are against
    random labels: they are there because every validation record has them.
    """
    path = options.run.checkpoint_path
    loaded = from_options(options, "random") if path is None else load(path)
    batch = options.events.validation_batch_size or options.batch.micro_batch_size
    asked = options.events.validation_replicas or options.batch.replicas * options.batch.devices_per_replica
    cores = usable_cores() if options.layout.threads is None else min(usable_cores(), options.layout.threads * asked)
    replicas = min(asked, cores)
    if replicas < asked:
        say(f"note: {asked} replicas share {many(cores, 'core')}: {replicas} at a time")
    if Precision.from_options(options.precision).is_half:
        say("note: half precision is computed in float32 on this processor, which is faster")
    images = options.data.max_validation_images
    found = _against_random_labels(loaded, batch)

    measured = measure(
        in_precision(loaded.source, precision, say),
        batch=batch,
        repeat=options.events.repeat,
        engine=engine,
        replicas=replicas,
        cores=cores,
        batches_per_repeat=None if images is None else -(-images // (batch * replicas)),
        seconds_per_repeat=REPEAT_SECONDS,
        on_repeat=lambda number, repeat: say(repeat.text(number)),
    )
    return measured, [_record(loaded.name, repeat, found) for repeat in measured.repeats]


def in_precision(source: Source, precision: str | None, say: Callable[[str], None] = lambda line: None) -> Source:
    """What is timed; without real images an 8-bit model has ranges for random ones, and only its speed means anything."""
    if precision in (None, source.precision):
        return source
    if precision == "auto" or source.precision == AnswerPrecision.INT8:
        say(f"note: without real images no other precision can be checked: {source.precision} is taken")
        return source
    if precision != AnswerPrecision.INT8:
        return dataclasses.replace(source, precision=AnswerPrecision(precision))
    shape = (source.batch or 8, *source.preprocessing.image_shape)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    file = int8_file(source, images, source.batch, weight_bits())
    return Source.of_file(source.preprocessing, file, source.batch, AnswerPrecision.INT8)


def _against_random_labels(loaded: Loaded, batch: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (batch, *loaded.preprocessing.image_shape), dtype=np.uint8)
    labels = rng.integers(0, loaded.num_classes, batch)
    logits = open_engine(loaded, "torch" if loaded.module is not None else "auto", batch)(images)
    return scores(logits, labels)


def _record(name: str, repeat: Repeat, found: dict[str, float]) -> dict[str, Any]:
    return {
        "name": name, "update": -1, "epoch": 0.0, **found, "images": repeat.images, "seconds": repeat.seconds,
        "images_per_second": repeat.images_per_second, **Latency.of(repeat.latencies).fields(),
    }  # fmt: skip
