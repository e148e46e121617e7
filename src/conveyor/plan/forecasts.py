"""What a forecast for a cluster is about: the stages and batches that the options ask for."""

import itertools
from collections.abc import Container
from dataclasses import dataclass, replace

from conveyor.data import catalogue as datasets
from conveyor.data.subject import Subject, planned
from conveyor.errors import UserError
from conveyor.models.splits import resolve
from conveyor.models.units import Unit, trace
from conveyor.options import Options
from conveyor.options.batch import BatchOptions
from conveyor.options.units import many
from conveyor.plan.choose import proposals
from conveyor.plan.costs import Model, StageCost
from conveyor.plan.planner import wanted
from conveyor.plan.simulator import Cluster
from conveyor.plan.splits import split_model
from conveyor.plan.timetable import LIKE, in_flight
from conveyor.topology import Topology

DEFAULT_EPOCHS = 90.0


@dataclass(frozen=True, slots=True)
class Case:
    """Stages with their costs, and the batch."""

    stages: tuple[StageCost, ...]
    split_names: tuple[str, ...]
    micro_batch: int
    replicas: int
    global_batch: int
    schedule: str
    notes: tuple[str, ...] = ()


def case_of(options: Options, cluster: Cluster, model: Model, devices: int | None, given: Container[str]) -> Case:
    """Stages as the options name them, else the best for the cluster; replicas fill the devices unless they are given."""
    batch = options.batch
    schedule = LIKE.get(batch.pipeline_schedule, batch.pipeline_schedule)
    notes = () if schedule == batch.pipeline_schedule else (f"{batch.pipeline_schedule} is simulated as {schedule}",)
    count = devices or cluster.total
    if not any(key in given for key in ("splits", "stages", "micro_batch_size")):
        asked = wanted(options, count, cluster.memory, given)
        found = proposals(model, cluster.hardware(), asked)
        if not found:
            raise UserError(
                f"{many(count, 'device')} of {cluster.memory / 2**30:.1f} GiB cannot hold the model: give more memory="
            )
        best = found[0]
        schedule = LIKE.get(best.schedule, best.schedule) if best.depth > 1 else schedule
        return Case(best.stages, best.split_names, best.micro_batch, best.lanes, asked.global_batch, schedule, notes)
    topology, _ = Topology.from_options(replace(batch, device_mapping=()))
    recompute = "stage" if "stage" in batch.recompute else "block" if batch.recompute else "none"
    cuts = _cuts(options, batch, topology, model, schedule, cluster, recompute)
    stages = tuple(
        model.stage(start, stop, topology.micro_batch, recompute) for start, stop in itertools.pairwise(cuts)
    )
    replicas = topology.replicas if "replicas" in given else max(1, count // len(stages))
    names = tuple(model.units[cut].name for cut in cuts[1:-1])
    fixed = "replicas" in given or batch.global_batch_size is not None
    global_batch = topology.global_batch if fixed else topology.micro_batch * topology.accumulation * replicas
    return Case(stages, names, topology.micro_batch, replicas, global_batch, schedule, notes)


def _cuts(
    options: Options,
    batch: BatchOptions,
    topology: Topology,
    model: Model,
    schedule: str,
    cluster: Cluster,
    recompute: str,
) -> tuple[int, ...]:
    if batch.splits and batch.splits != ("auto",):
        about = planned(options)
        return (0, *resolve(about.name, _units(options, about), batch.splits), len(model))
    held = in_flight(schedule, topology.stages, min(64, topology.accumulation))
    split = split_model(
        model,
        topology.stages,
        topology.micro_batch,
        recompute=recompute,
        in_flight=held,
        seconds_per_byte=1 / cluster.inner,
    )
    if split is None:
        raise UserError(
            f"the model has {many(len(model), 'unit')} and cannot be cut into {topology.stages} stages: lower --stages"
        )
    return split.cuts


def _units(options: Options, about: Subject) -> list[Unit]:
    from conveyor.plan.estimate import meta_model

    return trace(meta_model(options.model, **about.arguments()), about.image_size, about.in_channels)


def images_of_run(options: Options) -> float:
    """Images that the whole run sees: updates x global batch, or epochs x images (of ImageNet when no data set is named)."""
    if options.length.updates is not None:
        topology, _ = Topology.from_options(replace(options.batch, device_mapping=()))
        return float(options.length.updates) * topology.global_batch
    info = datasets.info(options.data) if options.data.data is not None else datasets.known()["imagenet"]
    return info.train_images * (options.length.epochs if options.length.epochs is not None else DEFAULT_EPOCHS)
