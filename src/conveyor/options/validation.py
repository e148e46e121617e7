"""The options of a validation: what concerns updates is left out, because a validation has none."""

import dataclasses

from conveyor.options.batch import BatchOptions
from conveyor.options.optimizer import OptimizerOptions, ScheduleOptions
from conveyor.options.options import Options, specs
from conveyor.options.run import EventOptions, LengthOptions

KEPT_EVENTS = ("validation_batch_size", "validation_replicas", "validation_views", "repeat", "latency")
KEPT_BATCH = ("micro_batch_size", "replicas")
UPDATES_ONLY = ("optimizer", "schedule", "length")
"""Sections that a validation never reads."""


def without_updates(options: Options) -> Options:
    """`options` for a validation. Stages become replicas: every worker has the whole model and a part of the images."""
    events = {name: getattr(options.events, name) for name in KEPT_EVENTS}
    return dataclasses.replace(
        options,
        batch=BatchOptions(
            micro_batch_size=options.batch.micro_batch_size,
            replicas=options.events.validation_replicas or options.batch.replicas * _devices(options.batch),
        ),
        model=dataclasses.replace(options.model, bn_span=1),
        optimizer=OptimizerOptions(),
        schedule=ScheduleOptions(),
        length=LengthOptions(),
        events=EventOptions(training=False, **events),
        run=dataclasses.replace(options.run, resume="no"),
    )


def has_effect(name: str) -> bool:
    """Whether a validation reads this option."""
    section = specs()[name].section
    if section in ("batch", "events"):
        return name in (*KEPT_BATCH, *KEPT_EVENTS, "training", "validation")
    return section not in UPDATES_ONLY and name not in ("bn_span", "resume")


def _devices(batch: BatchOptions) -> int:
    """Devices of one replica."""
    if batch.device_mapping:
        return max(batch.device_mapping) + 1
    return batch.stages or len(batch.splits) + 1
