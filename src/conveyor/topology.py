"""The arithmetic of a run, exact and without torch: batches, updates, epochs, host events.

Symbols: micro-batch `B`, accumulation `A`, replicas `R`, stages `S`. One weight update consumes `G = B A R` samples
in `A R` slots; slot number `k = a R + r` belongs to replica `r` and accumulation index `a`, so a batch-norm span of
`N` neighbouring replicas is `N` consecutive slots.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from conveyor.errors import UserError
from conveyor.options.batch import BatchOptions
from conveyor.options.run import EventOptions
from conveyor.options.units import Duration, format_fraction, many


@dataclass(frozen=True, slots=True)
class Topology:
    """What one weight update consists of."""

    micro_batch: int
    accumulation: int = 1
    replicas: int = 1
    stages: int = 1
    depth: int = 0
    """Devices of one replica; 0: one for each stage."""

    @property
    def slots(self) -> int:
        """Micro-batches of one update."""
        return self.accumulation * self.replicas

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.slots

    @property
    def devices(self) -> int:
        """Devices that would hold the topology exactly as asked."""
        return self.replicas * (self.depth or self.stages)

    @classmethod
    def from_options(cls, batch: BatchOptions) -> tuple["Topology", list[str]]:
        """The topology and notes about numbers that had to be adjusted."""
        stages, depth = _stages(batch), batch.devices_per_replica if batch.device_mapping else 0
        notes: list[str] = []
        accumulation = batch.accumulation or 1
        if batch.global_batch_size is not None:
            per_pass = batch.micro_batch_size * batch.replicas
            accumulation = max(1, math.floor(Fraction(batch.global_batch_size, per_pass) + Fraction(1, 2)))
            if accumulation * per_pass != batch.global_batch_size:
                notes.append(
                    f"global batch {batch.global_batch_size} is not a multiple of micro-batch {batch.micro_batch_size} x "
                    f"{many(batch.replicas, 'replica')}: using accumulation {accumulation}, global batch {accumulation * per_pass}"
                )
        return cls(batch.micro_batch_size, accumulation, batch.replicas, stages, depth), notes


MAX_PIXELS = 2**17
"""Pixels of a pass that several slots share: 2 pictures of 224 x 224, 32 of 64 x 64. More gains nothing and takes memory."""
MAX_IMAGES = 64
MIN_GROUPS = 4
"""Groups that stay for each stage: as many lanes can work, and a pipeline fills."""


def group_slots(topology: Topology, span: int, image_size: int, asked: str = "auto") -> int:
    """Slots that share one pass through the network: a number of the run, the same on every layout.

    Every pass reads the weights twice and writes their gradient once, whatever the size of its batch: with a
    micro-batch of 8 small pictures that costs more than the arithmetic. So a power of two of neighbouring batch-norm
    spans is joined while the pass stays small and enough groups are left for the replicas and stages that were asked
    for. Batch norms still take the statistics of each span by itself.
    """
    if asked != "auto":
        return _asked_group(topology, span, asked)
    images, spans = span * topology.micro_batch, topology.slots // span
    fitting = min(MAX_IMAGES // images, MAX_PIXELS // (images * image_size**2))
    fewest = max(MIN_GROUPS * topology.stages, topology.replicas // span)
    joined = 1
    while 2 * joined <= fitting and spans % (2 * joined) == 0 and spans // (2 * joined) >= fewest:
        joined *= 2
    return span * joined


def _asked_group(topology: Topology, span: int, asked: str) -> int:
    if not asked.isdecimal() or int(asked) < 1:
        raise UserError(f"--pass-slots {asked}: give auto or a number of slots from 1 on")
    number = int(asked)
    if topology.slots % number or number % span:
        fitting = [str(one) for one in sorted(divisors(topology.slots)) if one % span == 0]
        raise UserError(
            f"--pass-slots {number} does not fit: an update has {many(topology.slots, 'slot')} (accumulation "
            f"{topology.accumulation} x {many(topology.replicas, 'replica')}) with batch-norm spans of {span}; use "
            f"{' or '.join(fitting)}"
        )
    return number


def _stages(batch: BatchOptions) -> int:
    named = () if batch.splits == ("auto",) else batch.splits
    if batch.stages is not None and named and len(named) != batch.stages - 1:
        raise UserError(
            f"{batch.stages} stages need {many(batch.stages - 1, 'split')}, not {len(named)} ({' '.join(named)}): "
            "see `conveyor models show` for the names"
        )
    if batch.splits == ("auto",) and batch.stages is None:
        raise UserError("--splits auto needs the number of stages: add --stages N")
    stages = batch.stages or len(named) + 1
    if batch.device_mapping:
        check_mapping(batch.device_mapping, stages)
    return stages


def check_mapping(mapping: Sequence[int], stages: int) -> None:
    """Refuse a device mapping with another number of entries than stages, or one that leaves out a device."""
    if len(mapping) != stages:
        raise UserError(
            f"--device-mapping has {many(len(mapping), 'number')} for {many(stages, 'stage')}: give one for each stage"
        )
    if sorted(set(mapping)) != list(range(max(mapping) + 1)):
        raise UserError(
            f"--device-mapping {' '.join(map(str, mapping))} leaves a gap: use every number from 0 to {max(mapping)}"
        )


@dataclass(frozen=True, slots=True)
class Length:
    """How long a run lasts, in updates."""

    updates_per_epoch: int
    updates_total: int
    epochs: Fraction

    @classmethod
    def of(
        cls,
        images: int,
        global_batch: int,
        *,
        epochs: float | Fraction | None = None,
        updates: int | None = None,
        updates_per_epoch: int | None = None,
        by_images: bool = False,
    ) -> "Length":
        """`N // G` updates per epoch, in all that times the epochs, or the given number of updates.

        A fraction of an epoch, or any number of them `by_images`, gives `floor(N epochs / G)` updates in all.
        """
        per_epoch = updates_per_epoch or images // global_batch
        if per_epoch < 1:
            raise UserError(
                f"an update needs {global_batch} images (micro-batch x accumulation x replicas), but the data set has "
                f"{images}: lower one of them to at most {images} in all"
            )
        if updates is not None:
            return cls(per_epoch, updates, Fraction(updates, per_epoch))
        wanted = exact(epochs if epochs is not None else 1)
        if updates_per_epoch is None and (by_images or wanted.denominator != 1):
            total = math.floor(images * wanted / global_batch)
        else:
            total = math.floor(per_epoch * wanted)
        return cls(per_epoch, total, wanted)

    def updates(self, time: Duration, global_batch: int) -> int:
        """A time that an option gives as a number of updates, rounded down."""
        lengths = {"updates_per_epoch": self.updates_per_epoch, "updates_total": self.updates_total}
        return int(time.updates(**lengths, global_batch=global_batch))

    @property
    def epoch_length(self) -> Fraction:
        """Updates that an epoch of time lasts: not whole when epochs are counted in images."""
        return Fraction(self.updates_total) / self.epochs if self.epochs else Fraction(self.updates_per_epoch)


def exact(value: float | Fraction | int) -> Fraction:
    """The number a person meant: 0.1 is one tenth, not the nearest binary value."""
    return value if isinstance(value, Fraction) else Fraction(repr(value) if isinstance(value, float) else value)


def divisors(number: int) -> list[int]:
    """All divisors, in the order 1, n, 2, n/2, 3, n/3, ... in which ties of `closest_divisor` are decided."""
    found: list[int] = []
    for small in range(1, math.isqrt(number) + 1):
        if number % small == 0:
            found.append(small)
            if small != number // small:
                found.append(number // small)
    return found


def closest_divisor(number: int, wanted: int | Fraction) -> int:
    """The divisor of `number` nearest to `wanted`; of two equally near ones the first in the order of `divisors`."""
    return min(divisors(number), key=lambda divisor: abs(Fraction(divisor) - wanted))


def updates_per_event(
    frequency: Fraction, updates_per_epoch: int, epochs: Fraction, what: str
) -> tuple[int, list[str]]:
    """Updates between two events at `frequency` events per epoch (0: never), and a note if it had to be adjusted."""
    if frequency == 0:
        return 0, []
    if frequency >= 1:
        candidates, wanted, per = updates_per_epoch, frequency, Fraction(1)
    else:
        candidates = math.floor(updates_per_epoch * epochs)
        wanted, per = Fraction(max(1, math.floor(frequency * epochs))), epochs
    chosen = closest_divisor(max(1, candidates), wanted)
    notes: list[str] = []
    if chosen != wanted:
        notes.append(
            f"{what}: {format_fraction(frequency)} per epoch is not possible with {many(updates_per_epoch, 'update')} per epoch; "
            f"the closest is {format_fraction(chosen / per)} per epoch"
        )
    return max(1, candidates) // chosen, notes


@dataclass(frozen=True, slots=True)
class HostEvents:
    """When the loop returns to the host: counted over the whole run, never within an epoch."""

    updates_per_log: int
    updates_per_checkpoint: int
    updates_per_call: int
    calls: int
    first_checkpoint: int = 0
    notes: tuple[str, ...] = ()

    def logs_at(self, update: int, total: int) -> bool:
        """Whether a log point follows after `update` updates are done; the last update always has one."""
        return update == total or (self.updates_per_log > 0 and update % self.updates_per_log == 0)

    def saves_at(self, update: int) -> bool:
        """Whether a checkpoint follows after `update` updates are done."""
        period, first = self.updates_per_checkpoint, self.first_checkpoint
        return period > 0 and update >= max(1, first) and (update - first) % period == 0


def host_events(length: Length, asked: EventOptions) -> HostEvents:
    """Log and checkpoint periods and the number of updates between two returns to the host."""
    per_epoch, epochs, logs = length.updates_per_epoch, length.epochs, asked.logs_per_epoch
    if 0 < logs < 1 and asked.updates_per_log is None and (epochs * logs).denominator != 1:
        span = format_fraction(1 / logs)
        raise UserError(
            f"it is not possible to log {span} epochs at a time for {format_fraction(epochs)} epochs: "
            f"choose a number of epochs that is a multiple of {span}"
        )
    log_period, log_notes = updates_per_event(logs, per_epoch, epochs, "logs")
    if asked.updates_per_log is not None:
        log_period, log_notes = asked.updates_per_log, []
    first = exact(asked.first_checkpoint_epoch)
    saving_epochs = Fraction(math.floor(epochs - first))
    save_period, save_notes = updates_per_event(asked.checkpoints_per_epoch, per_epoch, saving_epochs, "checkpoints")
    if asked.updates_per_checkpoint is not None:
        save_period, save_notes = asked.updates_per_checkpoint, []
    notes = log_notes + save_notes
    call = math.gcd(log_period, save_period)
    if call == 0:
        notes.append("neither logs nor checkpoints are asked for: the whole run is one call")
        call = length.updates_total
    call = min(asked.updates_per_call or call, max(1, length.updates_total))
    return HostEvents(
        updates_per_log=log_period,
        updates_per_checkpoint=save_period,
        updates_per_call=call,
        calls=-(-length.updates_total // call),  # exact: quotients of floats round, and end at 1e308
        first_checkpoint=math.floor(first * per_epoch),
        notes=tuple(notes),
    )
