"""From options to plans: which model and devices are meant, what the units cost, which layouts are best."""

import dataclasses
from collections.abc import Container, Sequence

from conveyor.data.subject import Subject
from conveyor.errors import UserError
from conveyor.layout import Machine, parse_layout, usable_memory
from conveyor.options import Options
from conveyor.plan.choose import Proposal, Wanted, no_proposal, optimiser_copies, proposals
from conveyor.plan.costs import RECOMPUTE, Model
from conveyor.plan.hardware import Hardware, accelerator, this_cpu
from conveyor.topology import Topology, group_slots

DEFAULT_GLOBAL_BATCH = 256
MEASURED_BATCH = 8
SMALL_BATCH = 4


def hardware_here(options: Options) -> Hardware:
    """The devices of this machine."""
    import torch

    from conveyor.run.gemm_rate import gemm_rate

    machine = Machine.here(options.layout.device)
    if machine.accelerators and torch.cuda.is_available():
        device = torch.device("cuda")
        return accelerator(gemm_rate(device), float(torch.cuda.get_device_properties(0).total_memory))
    return this_cpu(machine.cores, gemm_rate(torch.device("cpu"), 1), float(usable_memory()))


def cost_model(
    options: Options, about: Subject, hardware: Hardware, *, measure: bool, workers: int = 1, staged: bool = False, batch: int = MEASURED_BATCH,
    kinds: Sequence[str] = RECOMPUTE, global_batch: int | None = None,
) -> Model:  # fmt: skip
    """The units' costs: estimated, or measured here with `workers` - 1 further busy processes.

    Measured times are those of a worker with its share of the cores as threads: plan with `as_measured(hardware)`. With
    `global_batch` they hold for the number of micro-batches that a lane runs together.
    """
    from conveyor.numerics.precision import Precision
    from conveyor.plan import estimate

    meta = estimate.meta_model(options.model, **about.arguments())
    half = 2 if Precision.from_options(options.precision).is_half and hardware.cores == 0 else 4
    if not measure:
        return estimate.estimated(meta, about.image_size, about.in_channels, hardware, element_bytes=half)
    if not hardware.cores:
        raise UserError("units are measured on a CPU only: leave out --measure to estimate them for accelerators")
    from conveyor.models.registry import build_from
    from conveyor.numerics.threads import using_threads
    from conveyor.plan import measure as measuring

    def joined(size: int) -> int:
        """Slots of a micro-batch of `size` that share one pass when one replica accumulates all images."""
        if staged or global_batch is None:
            return 1
        return group_slots(Topology(size, max(1, global_batch // size)), 1, about.image_size)

    sizes, others = (max(1, batch // 2), batch), min(workers, hardware.cores) - 1
    with using_threads(max(1, hardware.cores // workers)):
        real = measuring.ready(build_from(options.model, **about.arguments()), run_options(options, about))
        with measuring.others_busy(options.model, about.arguments(), about.image_size, batch, others):
            found = measuring.measured(
                real, about.image_size, about.in_channels, sizes, staged=staged, kinds=kinds, joined=joined
            )
    return estimate.estimated(
        meta, about.image_size, about.in_channels, hardware, found.times, element_bytes=half, again=found.again
    )


def run_options(options: Options, about: Subject) -> Options:
    """The options of a run of the subject on random images, without anything but training."""
    return options.replace(
        model=about.name, image_size=about.image_size, num_classes=about.num_classes, in_channels=about.in_channels,
        data=options.data.data or "cifar10", synthetic_data=True, epochs=None, validation=False, checkpoints_per_epoch=0,
        tensorboard=False, report=False, quiet=True, global_batch_size=None, stages=None, splits=(), recompute=(),
    )  # fmt: skip


def as_measured(hardware: Hardware) -> Hardware:
    """The hardware for measured costs, which hold the gain of a worker's threads."""
    return dataclasses.replace(hardware, thread_gain=0.0)


def update_rate() -> float:
    """Seconds per byte of weights that the optimiser takes here, in one thread."""
    from conveyor.numerics.threads import using_threads
    from conveyor.plan.measure import update_seconds_per_byte

    with using_threads(1):
        return update_seconds_per_byte()


def wanted(options: Options, devices: int, memory: float | None, given: Container[str] | None = None) -> Wanted:
    """What the options fix; a batch or a schedule that was not given is left to the search.

    `given` are the names that the user gave, which may equal the defaults; without it, those that differ from them.
    """
    given = options.changed() if given is None else given
    batch = options.batch
    topology, _ = Topology.from_options(dataclasses.replace(batch, splits=(), stages=None, device_mapping=()))
    known_batch = any(key in given for key in ("global_batch_size", "accumulation", "replicas", "micro_batch_size"))
    total = topology.global_batch if known_batch else max(DEFAULT_GLOBAL_BATCH, devices)
    if batch.global_batch_size is not None and "micro_batch_size" not in given:
        total = batch.global_batch_size
    depths: tuple[int, ...] = ()
    if batch.splits or batch.stages:
        depths = (batch.stages or len(batch.splits) + 1,)
    if options.layout.layout != "auto":
        lanes, depth = parse_layout(options.layout.layout)
        depths, devices = (depth,), lanes * depth
    recompute: tuple[str, ...] = RECOMPUTE
    if batch.recompute:
        recompute = tuple("stage" if name == "stage" else "block" for name in batch.recompute[:1])
    elif batch.pipeline_schedule == "zero-bubble":
        recompute = ("none",)  # it runs the backward pass in two parts, which recomputation does not support
    return Wanted(
        devices=devices,
        global_batch=total,
        memory=memory,
        micro_batches=(batch.micro_batch_size,) if "micro_batch_size" in given else (),
        depths=depths,
        schedules=(batch.pipeline_schedule,) if "pipeline_schedule" in given else ("1f1b", "gpipe"),
        recompute=recompute,
        weight_copies=optimiser_copies(options.optimizer),
    )


def plan(model: Model, hardware: Hardware, asked: Wanted) -> list[Proposal]:
    """The proposals, best first; a UserError says why there are none.

    Batch norm needs a few images, so micro-batches below SMALL_BATCH are proposed only when nothing else fits.
    """
    found = proposals(model, hardware, dataclasses.replace(asked, smallest_micro_batch=SMALL_BATCH))
    found = found or proposals(model, hardware, asked)
    if not found:
        raise no_proposal(model, asked, hardware)
    return found


def command_of(options: Options, chosen: Proposal) -> str:
    """The `conveyor train` command that runs a proposal."""
    cleared = options.replace(global_batch_size=None, stages=None, device_mapping=(), splits=(), recompute=())
    return cleared.replace(**chosen.train_options()).command_text("train")
