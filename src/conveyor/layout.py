"""The physical side of a run: `lanes x depth` worker processes, their threads, and who computes which slots.

A lane is one data-parallel worker group; its depth is the number of pipeline stages that run in workers of their own.
The layout never changes what a run computes, only where.
"""

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from conveyor.errors import UserError
from conveyor.options.batch import LayoutOptions
from conveyor.topology import Topology


@dataclass(frozen=True, slots=True)
class Layout:
    """`lanes` data-parallel groups of `depth` workers each, with `threads` threads per worker."""

    lanes: int = 1
    depth: int = 1
    threads: int = 1

    @property
    def workers(self) -> int:
        return self.lanes * self.depth

    def __str__(self) -> str:
        return f"{self.lanes}x{self.depth}"


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to run on: accelerators, or else cores."""

    cores: int
    accelerators: int = 0

    @classmethod
    def here(cls, device: str = "auto") -> "Machine":
        """This machine: usable cores, and the accelerators the driver lists (none asked for with `cpu`)."""
        return cls(usable_cores(), 0 if device == "cpu" else count_accelerators())


def usable_cores() -> int:
    """Cores this process may use: its affinity mask, capped by a container's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def wait_politely() -> None:
    """On a busy machine let idle threads sleep instead of spin; called before torch is loaded, which reads it once.

    Spinning is fastest on cores of one's own (half as fast again with small batches), but costs a factor of 3 to 7 when
    other programs want them too.
    """
    if others_want_cores():
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def others_want_cores() -> bool:
    """Whether more than half of the cores were in use during the last minute."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > usable_cores() / 2


def count_accelerators() -> int:
    """CUDA devices visible here, without importing torch: the driver's device files, less what the user hid."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        present = sum(1 for name in os.listdir("/dev") if re.fullmatch(r"nvidia[0-9]+", name))
    except OSError:
        present = 0
    if visible is None:
        return present
    return min(present, len([part for part in visible.split(",") if part.strip() not in ("", "-1")]))


def parse_layout(text: str) -> tuple[int, int]:
    """`2x1` -> (2, 1)."""
    match = re.fullmatch(r"\s*([1-9][0-9]*)\s*[xX]\s*([1-9][0-9]*)\s*", text)
    if match is None:
        raise UserError(f"--layout {text!r} is not of the form LANESxDEPTH, such as 2x1")
    return int(match[1]), int(match[2])


def choose_layout(
    options: LayoutOptions, topology: Topology, machine: Machine, workers: int | None = None
) -> tuple[Layout, str]:
    """The layout of a run and the line that tells the user about it.

    `workers` is the number of processes a launcher has already started, if one has. On accelerators the topology is
    placed exactly when there are enough of them, else folded to one lane per accelerator. On a CPU a lane per core
    with one thread each beats both one process with many threads and a pipeline, so depth is used only when asked for.
    """
    units = workers or machine.accelerators or machine.cores
    if options.layout != "auto":
        lanes, depth = parse_layout(options.layout)
        why = "as asked"
        if depth > topology.stages:
            raise UserError(
                f"--layout {options.layout} has depth {depth}, but the model has {topology.stages} "
                f"stage{'s' if topology.stages > 1 else ''}: lower the depth or name more --splits"
            )
    elif (machine.accelerators or workers) and units >= topology.devices and units > 1:
        lanes, depth, why = topology.replicas, topology.stages, "exactly as asked"
        spare = units // topology.devices
        lanes *= max(1, min(spare, topology.accumulation))
        if lanes > topology.replicas:
            why = "accumulation spread over idle workers"
    else:
        lanes, depth = max(1, min(units, topology.slots)), 1
        why = (
            "folded"
            if topology.devices > lanes
            else "accumulation spread over lanes"
            if lanes > topology.replicas
            else "exactly as asked"
        )
    if workers is not None and lanes * depth != workers:
        if options.layout != "auto":
            raise UserError(
                f"--layout {options.layout} needs {lanes * depth} workers, but the launcher started {workers}"
            )
        lanes, depth = workers, 1
    if lanes > topology.slots:
        raise UserError(
            f"{lanes} lanes need at least {lanes} micro-batches per update, but there are {topology.slots} "
            f"(accumulation {topology.accumulation} x {topology.replicas} replicas): lower the lanes or raise --accumulation"
        )
    threads = options.threads or max(1, machine.cores // min(lanes * depth, machine.cores))
    layout = Layout(lanes, depth, threads)
    where = _count(machine.accelerators, "accelerator") if machine.accelerators else _count(machine.cores, "core")
    note = (
        f"layout {layout}: {_count(topology.replicas, 'replica')} x {_count(topology.stages, 'stage')} x accumulation "
        f"{topology.accumulation} on {where}, {_count(lanes, 'lane')} of depth {depth}, {_count(threads, 'thread')} each ({why})"
    )
    return layout, note


def lanes_per_span(slots: int, lanes: int, span: int) -> int:
    """Lanes that share one batch-norm span of `span` slots; 1 when every span lies within a lane."""
    groups = slots // span
    if span == 1 or groups >= lanes:
        return 1
    return max(count for count in range(1, lanes // groups + 1) if span % count == 0)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def deal_slots(slots: int, lanes: int, span: int = 1) -> list[range]:
    """Consecutive slots for each lane, as even as can be; groups of `span` slots stay whole if there are enough.

    With fewer groups than lanes every group is cut into the same number of equal parts, one per lane, so that all
    batches have one size and every group counts alike; lanes that are left over get no slots.
    """
    if span > 1 and slots % span == 0 and slots // span < lanes:
        part = span // lanes_per_span(slots, lanes, span)
        used = [range(first, first + part) for first in range(0, slots, part)]
        return used + [range(slots, slots)] * (lanes - len(used))
    unit = span if span > 1 and slots % span == 0 else 1
    groups = slots // unit
    bounds = [lane * groups // lanes * unit for lane in range(lanes + 1)]
    bounds[-1] = slots
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]
