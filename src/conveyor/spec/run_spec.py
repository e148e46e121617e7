"""What a run consists of, as one value; each fact is held once, by the part that it belongs to."""

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from conveyor.data.catalogue import DatasetInfo
from conveyor.data.subject import Subject
from conveyor.layout import Layout, deal, lanes_per_span
from conveyor.optim.schedule import Schedule
from conveyor.options import Options
from conveyor.topology import HostEvents, Length, Topology
from conveyor.tree import Dealt

if TYPE_CHECKING:
    from conveyor.numerics.half_choice import HalfChoice

OWN_MODEL = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that follows from the options; made by `resolve`."""

    options: Options
    data: DatasetInfo
    subject: Subject
    """The network, its input and its classes."""
    topology: Topology
    group_slots: int
    """Slots that share one pass through the network."""
    layout: Layout
    layout_note: str
    length: Length
    schedule: Schedule
    release: int | None
    """Updates after which what was frozen is trained too; None: never."""
    events: HostEvents
    validation_batch: int
    validation_replicas: int
    cuts_spans: bool = False
    """Lanes may share a batch-norm span: on accelerators, which do not guarantee equal bits and should not be idle."""
    notes: tuple[str, ...] = ()
    half: "HalfChoice | None" = None
    """How CPUs compute in half precision; measured when the run starts, then kept."""

    @property
    def best_by(self) -> str:
        """The figure of validation that makes a checkpoint the best."""
        return self.options.by_task()["best_by"]

    def dealt(self, lanes: int) -> Dealt:
        """Which groups of slots each of `lanes` lanes computes; computed once for a run."""
        return deal(self.topology.slots, self.group_slots, lanes, self._cut_span)

    def lanes_per_span(self, lanes: int) -> int:
        """How many of `lanes` lanes share one batch-norm span."""
        return lanes_per_span(self.topology.slots, lanes, self._cut_span)

    @property
    def _cut_span(self) -> int:
        return self.options.model.bn_span if self.cuts_spans else 1

    def replace(self, **changes: Any) -> "RunSpec":
        """The same run with some values changed (another layout, say)."""
        return dataclasses.replace(self, **changes)

    def to_json(self, command: str = "train") -> dict[str, Any]:
        """The object that `--dry-run --json` prints."""
        topology, events, options = self.topology, self.events, self.options
        training: dict[str, Any] = {
            "train_images": self.data.train_images,
            "slots": topology.slots,
            "group_slots": self.group_slots,
            "epochs": _number(self.length.epochs),
            "updates_per_epoch": self.length.updates_per_epoch,
            "updates_total": self.length.updates_total,
            "warmup_updates": self.schedule.warmup,
            "peak_lr": self.schedule.peak,
            "optimiser": options.optimizer.optimizer,
            "rmsprop_decay": options.optimizer.decay_of_squares(topology.global_batch),
            "schedule": options.schedule.lr_schedule,
            "updates_per_log": events.updates_per_log,
            "updates_per_checkpoint": events.updates_per_checkpoint,
            "updates_per_call": events.updates_per_call,
            "calls": events.calls,
            "split_points": list(options.batch.splits),
        }
        return {
            "model": self.subject.name,
            "data": self.data.name,
            "image_size": self.subject.image_size,
            "num_classes": self.subject.num_classes,
            "in_channels": self.subject.in_channels,
            "micro_batch": topology.micro_batch,
            "accumulation": topology.accumulation,
            "replicas": topology.replicas,
            "stages": topology.stages,
            "devices": topology.devices,
            "global_batch": topology.global_batch,
            **(training if options.events.training else {}),
            "precision": options.precision.precision,
            "validation": {
                "batch": self.validation_batch,
                "replicas": self.validation_replicas,
                "images": self.data.validation_images,
            },
            "layout": str(self.layout),
            "threads": self.layout.threads,
            "cuts_spans": self.cuts_spans,
            "notes": list(self.notes),
            "command": options.command_text(command if options.events.training else "validate"),
        }


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)
