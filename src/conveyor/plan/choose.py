"""The best ways to run a model on some devices: lanes, depth, splits, micro-batch, recomputation, schedule.

One update takes
    the slowest lane's timetable + the exposed part of the gradient exchange + the optimiser,
and every worker must fit into its memory. All combinations are tried; the splits of each are the exact optimum.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from conveyor.errors import UserError
from conveyor.monitor.timeline import Span
from conveyor.options.optimizer import OptimizerOptions
from conveyor.options.units import many
from conveyor.plan.costs import RECOMPUTE, Model, StageCost
from conveyor.plan.hardware import Hardware
from conveyor.plan.splits import split_model
from conveyor.plan.timetable import LIKE, Timetable, in_flight, simulate
from conveyor.topology import divisors

MAX_SHOWN_SLOTS = 64
"""Longer timetables are extrapolated from two shorter ones: in the steady state every slot adds the same time."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user has fixed; None leaves it to the search."""

    devices: int
    global_batch: int
    memory: float | None = None
    micro_batches: tuple[int, ...] = ()
    smallest_micro_batch: int = 1
    depths: tuple[int, ...] = ()
    schedules: tuple[str, ...] = ("1f1b", "gpipe")
    recompute: tuple[str, ...] = RECOMPUTE
    weight_copies: float = 3.0
    update_seconds_per_byte: float = 1.2e-9


@dataclass(frozen=True, slots=True)
class Proposal:
    """One way to run, with its prediction."""

    lanes: int
    depth: int
    micro_batch: int
    slots: int
    schedule: str
    recompute: str
    stages: tuple[StageCost, ...]
    split_names: tuple[str, ...]
    update_seconds: float
    images_per_second: float
    bubble: float
    memory: tuple[float, ...]
    reduce_seconds: float
    fits: bool

    @property
    def layout(self) -> str:
        return f"{self.lanes}x{self.depth}"

    @property
    def peak_memory(self) -> float:
        return max(self.memory)

    def spans(self, slots: int) -> list[Span]:
        """The timetable of one lane with at most `slots` slots, without the time to send."""
        count = min(slots, -(-self.slots // self.lanes))
        return _lane_timetable(self.stages, LIKE.get(self.schedule, self.schedule), count, 1.0, 0.0).spans()

    def train_options(self) -> dict[str, object]:
        """The options of `conveyor train` that run it: every lane is a replica of its own."""
        options: dict[str, object] = {
            "micro_batch_size": self.micro_batch,
            "replicas": self.lanes,
            "accumulation": self.slots // self.lanes,
            "layout": self.layout,
        }
        if self.depth > 1:
            options |= {"splits": self.split_names, "pipeline_schedule": self.schedule}
        if self.recompute != "none":
            options["recompute"] = (self.recompute,)
        return options


def proposals(model: Model, hardware: Hardware, wanted: Wanted) -> list[Proposal]:
    """Every way that fits, fastest first; of equally fast ones the one that needs less memory."""
    found: list[Proposal] = []
    for depth in wanted.depths or sorted(divisors(wanted.devices)):
        for micro_batch in wanted.micro_batches or sizes(wanted.global_batch, wanted.smallest_micro_batch):
            if wanted.global_batch % micro_batch:
                continue
            slots = wanted.global_batch // micro_batch
            lanes = wanted.devices // depth
            if lanes < 1 or slots < lanes or slots % lanes or depth > len(model):
                continue
            for recompute in wanted.recompute:
                for schedule in wanted.schedules if depth > 1 else wanted.schedules[:1]:
                    made = propose(model, hardware, wanted, lanes, depth, micro_batch, schedule, recompute)
                    if made is not None and made.fits:
                        found.append(made)
    return sorted(found, key=lambda one: (-round(one.images_per_second, 3), one.peak_memory))


def propose(
    model: Model,
    hardware: Hardware,
    wanted: Wanted,
    lanes: int,
    depth: int,
    micro_batch: int,
    schedule: str,
    recompute: str,
) -> Proposal | None:
    """The prediction for one layout, with the best splits that fit; None if there are none."""
    slots = wanted.global_batch // micro_batch
    per_lane = -(-slots // lanes)
    # A lane of one worker runs one micro-batch after the other, whatever the schedule.
    order = LIKE.get(schedule, schedule) if depth > 1 else "sequential"
    held = in_flight(order, depth, per_lane)
    link = hardware.network.inner if lanes * depth <= hardware.network.devices_per_host else hardware.network.outer
    split = split_model(
        model, depth, micro_batch, recompute=recompute, in_flight=held, memory=wanted.memory,
        copies_of_weights=wanted.weight_copies, seconds_per_byte=1 / link.bandwidth,
    )  # fmt: skip
    if split is None:
        return None
    stages = tuple(model.stage(start, stop, micro_batch, recompute) for start, stop in itertools.pairwise(split.cuts))
    slowdown = hardware.slowdown(lanes * depth)
    sending = [link.seconds(stage.output_bytes) for stage in stages[:-1]]
    passes, bubble = _lane_seconds(stages, order, per_lane, slowdown, sending)
    network = hardware.network.shared(depth)
    reduce = max(network.reduce_seconds(stage.weight_bytes, lanes, "sharded") for stage in stages)
    exposed = reduce
    if hardware.overlaps:
        exposed = max(0.0, reduce - min(stage.backward for stage in stages)) if reduce else 0.0
    largest = max(stage.weight_bytes for stage in stages)
    seconds = passes + exposed + largest * wanted.update_seconds_per_byte * slowdown
    memory = tuple(stage.memory(many, wanted.weight_copies) for stage, many in zip(stages, held, strict=True))
    limit = wanted.memory if wanted.memory is not None else hardware.memory_of_worker(lanes * depth)
    return Proposal(
        lanes=lanes,
        depth=depth,
        micro_batch=micro_batch,
        slots=slots,
        schedule=schedule if depth > 1 else "none",
        recompute=recompute,
        stages=stages,
        split_names=tuple(model.units[cut].name for cut in split.cuts[1:-1]),
        update_seconds=seconds,
        images_per_second=wanted.global_batch / seconds,
        bubble=bubble,
        memory=memory,
        reduce_seconds=reduce,
        fits=limit is None or max(memory) <= limit,
    )


def _lane_seconds(
    stages: Sequence[StageCost], schedule: str, slots: int, slowdown: float, sending: Sequence[float]
) -> tuple[float, float]:
    """Makespan and bubble of a lane; long runs of slots are extrapolated, which is exact in the steady state."""
    shown = min(slots, MAX_SHOWN_SLOTS)
    table = _lane_timetable(stages, schedule, shown, slowdown, sending)
    total = float(table.makespan)
    if slots > shown:
        before = _lane_timetable(stages, schedule, shown // 2, slowdown, sending)
        total += (slots - shown) * (total - float(before.makespan)) / (shown - shown // 2)
    busy = sum(stage.seconds for stage in stages) * slowdown * slots
    return total, max(0.0, 1 - busy / (len(stages) * total))


def _lane_timetable(
    stages: Sequence[StageCost], schedule: str, slots: int, slowdown: float, sending: Sequence[float] | float
) -> Timetable:
    delays = [sending] * (len(stages) - 1) if isinstance(sending, int | float) else list(sending)
    return simulate(
        "sequential" if schedule == "none" else schedule,
        [stage.forward * slowdown for stage in stages],
        [stage.backward * slowdown for stage in stages],
        slots,
        delays,
    )


def sizes(global_batch: int, smallest: int = 1) -> list[int]:
    """Micro-batches worth trying: powers of two from `smallest` to 128 that divide the global batch."""
    found = (1 << power for power in range(8))
    return [size for size in found if smallest <= size <= global_batch and global_batch % size == 0] or [global_batch]


def optimiser_copies(chosen: OptimizerOptions) -> float:
    """Copies of the weights: themselves, their gradients, the state of the update rule, and an average of them."""
    from conveyor.optim.optimizer import make_rule

    kept = len(make_rule(chosen).state)
    # Rules that are made per parameter: one moment per weight, also without momentum; lamb has Adam's two.
    kept = max({"lars": 1, "muon": 1, "lamb": 2}.get(chosen.optimizer, 0), kept)
    return 2.0 + kept + (chosen.ema_decay is not None)


def no_proposal(model: Model, wanted: Wanted, hardware: Hardware) -> UserError:
    """Why there is no way: none suits the batch, or none fits into the memory, with the least that would do."""
    small = [
        made
        for depth in wanted.depths or sorted(divisors(wanted.devices))
        for recompute in wanted.recompute
        if depth <= len(model)
        and (made := propose(model, hardware, replace(wanted, memory=None), max(1, wanted.devices // depth), depth, min(wanted.micro_batches or (1,)), "1f1b", recompute))
    ]  # fmt: skip
    least = min((one.peak_memory for one in small), default=0.0)
    if wanted.memory is None or least <= wanted.memory:
        return UserError(
            f"no layout of {many(wanted.devices, 'device')} suits a global batch of {wanted.global_batch}: change one of them"
        )
    return UserError(
        f"nothing fits: the smallest plan found needs {least / 2**20:.0f} MiB per device and the limit is "
        f"{wanted.memory / 2**20:.0f} MiB; raise --memory or --devices"
    )
