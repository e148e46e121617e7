"""The layout of a run: `lanes x depth` worker processes, their threads, and which lane computes which slots.

A lane is one data-parallel worker group; its depth is the number of pipeline stages that run in workers of their own.
The layout never changes what a run computes, only where.
"""

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from conveyor.errors import UserError
from conveyor.options.batch import LayoutOptions
from conveyor.options.units import many
from conveyor.topology import Topology
from conveyor.tree import Dealt

BATCHES_PER_WORKER = 16
"""Fewest batches of a validation per worker: with fewer a worker takes longer to start than it saves."""


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
    """The hardware of a run: accelerators, or else cores."""

    cores: int
    accelerators: int = 0
    hosts: int = 1
    """Machines that the cores are spread over."""

    def threads(self, groups: int) -> int:
        """Default threads of a worker: one machine's cores divided by the groups of an update."""
        cores = max(1, self.cores // self.hosts)
        return cores // min(groups, cores)

    def __str__(self) -> str:
        return many(self.accelerators, "accelerator") if self.accelerators else many(self.cores, "core")

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


def usable_memory() -> int:
    """Bytes that this machine has for programs: its memory, capped by a container's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        return total if limit == "max" else min(total, int(limit))
    except (OSError, ValueError):
        return total


def let_idle_threads_sleep() -> None:
    """On a busy machine let idle threads sleep instead of spin; call it before torch is loaded, which reads it once.

    Spinning is fastest on cores that no other program uses (1.5 times as fast with small batches), but 3 to 7 times
    slower on cores that are shared.
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
    options: LayoutOptions,
    topology: Topology,
    machine: Machine,
    workers: int | None = None,
    groups: int | None = None,
) -> tuple[Layout, str]:
    """The layout of a run and the line that describes it to the user.

    `workers` is the number of processes a launcher has already started, if one has. On accelerators the topology is
    placed exactly when there are enough of them, else folded to one lane per accelerator. On a CPU a lane per core
    with one thread each beats both one process with many threads and a pipeline, so depth is used only when asked for.

    The number of threads decides the order of some sums inside a layer, so by default it follows from the `groups` of
    an update (default: its slots) and the cores, not from the lanes: other layouts of the run compute the same bits.
    """
    groups = groups or topology.slots
    units = workers or machine.accelerators or machine.cores
    if options.layout != "auto":
        lanes, depth = parse_layout(options.layout)
        why = "as asked"
        if depth > topology.stages:
            raise UserError(
                f"--layout {options.layout} has depth {depth}, but the model has {many(topology.stages, 'stage')}: lower the "
                "depth or name more --splits"
            )
    elif (machine.accelerators or workers) and units >= topology.devices and units > 1:
        lanes, depth, why = topology.replicas, topology.depth or topology.stages, "exactly as asked"
        spare = units // topology.devices
        lanes *= max(1, min(spare, topology.accumulation))
        if lanes > topology.replicas:
            why = "accumulation spread over idle workers"
    else:
        lanes, depth = max(1, min(units, groups)), 1
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
                f"--layout {options.layout} needs {many(lanes * depth, 'worker')}, but the launcher started {workers}"
            )
        lanes, depth = workers, 1
    if lanes > topology.slots:
        raise UserError(
            f"{lanes} lanes need at least {lanes} micro-batches per update, but there are {topology.slots} "
            f"(accumulation {topology.accumulation} x {many(topology.replicas, 'replica')}): lower the lanes or raise --accumulation"
        )
    # Workers that a launcher has started take all the cores that they were given: there may be few of them.
    share = max(1, machine.cores // workers) if workers else machine.threads(groups)
    threads = options.threads or share
    layout = Layout(lanes, depth, threads)
    note = (
        f"layout {layout}: {many(topology.replicas, 'replica')} x {many(topology.stages, 'stage')} x accumulation "
        f"{topology.accumulation} on {machine}, {many(lanes, 'lane')} of depth {depth}, {many(threads, 'thread')} each ({why})"
    )
    return layout, note


def validation_layout(
    options: LayoutOptions, batches: int, machine: Machine, workers: int | None = None
) -> tuple[Layout, str]:
    """The layout of a validation and the line about it: every worker has the whole model and a part of the batches."""
    units = workers or machine.accelerators or machine.cores
    lanes = workers or max(1, min(units, batches // BATCHES_PER_WORKER))
    if options.layout != "auto":
        asked, depth = parse_layout(options.layout)
        lanes = asked * depth
        if workers is not None and lanes != workers:
            raise UserError(
                f"--layout {options.layout} needs {many(lanes, 'worker')}, but the launcher started {workers}"
            )
    threads = options.threads or max(1, machine.cores // min(lanes, machine.cores))
    layout = Layout(lanes, 1, threads)
    share = f"{many(lanes, 'worker')} with the whole model, {many(threads, 'thread')} each"
    return layout, f"layout {layout}: {many(batches, 'batch')} on {machine}, {share}"


def lanes_per_span(slots: int, lanes: int, span: int) -> int:
    """Lanes that share one batch-norm span of `span` slots; 1 when every span lies within a lane."""
    groups = slots // span
    if span == 1 or groups >= lanes:
        return 1
    return max(count for count in range(1, lanes // groups + 1) if span % count == 0)


@functools.cache
def deal(slots: int, group: int, lanes: int, span: int = 1) -> Dealt:
    """Consecutive groups of `group` slots for each lane, as evenly as possible; some lanes have none if groups are few.

    A group holds whole batch-norm spans and is computed by one lane. On accelerators, where idle lanes cost more,
    `span` > 1 allows to cut spans of `span` slots: with fewer spans than lanes each is cut into equal parts, one per
    lane, so that all batches have one size and every span has the same weight. The result then equals that of other
    layouts only within rounding.
    """
    if span > 1 and slots // span < lanes and lanes_per_span(slots, lanes, span) > 1:
        group = span // lanes_per_span(slots, lanes, span)
        return Dealt(slots, group, _one_each(slots // group, lanes))
    groups = slots // group
    if groups < lanes:
        return Dealt(slots, group, _one_each(groups, lanes))
    return Dealt(slots, group, tuple(_even(range(groups), lanes)))


def _even(groups: range, lanes: int) -> list[range]:
    """Shares that differ by at most one group; an even number of lanes is halved where the tree of sums is."""
    if lanes == 1:
        return [groups]
    half = lanes // 2
    middle = len(groups) // 2 if lanes % 2 == 0 else half * len(groups) // lanes
    return _even(groups[:middle], half) + _even(groups[middle:], lanes - half)


def _one_each(groups: int, lanes: int) -> tuple[range, ...]:
    return tuple(range(min(lane, groups), min(lane + 1, groups)) for lane in range(lanes))
