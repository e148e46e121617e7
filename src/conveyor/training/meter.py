"""Loss, accuracy, throughput and phase times between two log points; nothing is read from the device before one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from conveyor import tree
from conveyor.monitor.memory import peak_resident
from conveyor.monitor.worker_profile import WorkerProfile
from conveyor.training.loss import LOSS, SAMPLES, TALLY, TOP1
from conveyor.tree import Dealt
from conveyor.world.world import World

PHASES = ("data", "forward", "backward", "wait", "reduce", "update")
"""`wait`: for other stages of a pipeline."""


class DeviceClock:
    """Times of phases from events in the device's own queue: the host only queues work, and is ahead of it."""

    def __init__(self, make_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True)) -> None:
        self._make_event = make_event
        self._open: list[tuple[str, Any, Any]] = []
        self.begin()

    def begin(self) -> None:
        self._last = self._make_event()
        self._last.record()

    def mark(self, phase: str) -> None:
        before = self._last
        self.begin()
        self._open.append((phase, before, self._last))

    def read(self) -> Iterator[tuple[str, float]]:
        """(phase, seconds) of every mark since the last call; waits for the device."""
        self._last.synchronize()
        done, self._open = self._open, []
        return ((phase, before.elapsed_time(after) / 1000) for phase, before, after in done)


class Timing:
    """Seconds by phase, since the start of this part of the run: of the host, or on a GPU of the device, as of `settle`."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._clock = DeviceClock() if device is not None and device.type == "cuda" else None
        self._last = time.perf_counter()
        self.watch: WorkerProfile | None = None
        """Called at the end of every phase, for the timeline and the profile."""

    def begin(self) -> None:
        """The next `mark` measures from here."""
        self._last = time.perf_counter()
        if self._clock is not None:
            self._clock.begin()

    def add(self, phase: str, seconds: float) -> None:
        """Time of the host that was measured elsewhere; the next `mark` measures from here. A GPU has its own: `passed`."""
        if self._clock is None:
            self.seconds[phase] += seconds
            self.begin()

    def passed(self, phase: str) -> None:
        """In a pipeline: `phase` ends here in the GPU's queue. Of a host `add` says how long it took."""
        if self._clock is not None:
            self._clock.mark(phase)

    def mark(self, phase: str) -> None:
        """The time since the last `begin` or `mark` was spent on `phase`."""
        now = time.perf_counter()
        if self._clock is not None:
            self._clock.mark(phase)
        else:
            self.seconds[phase] += now - self._last
        if self.watch is not None:
            self.watch.mark(phase, self._last, now)
        self._last = now

    def settle(self) -> None:
        """Make `seconds` current. On a GPU this waits for the device: at log points only."""
        for phase, seconds in self._clock.read() if self._clock is not None else ():
            self.seconds[phase] += seconds


class Meter:
    """Tallies on the device, times on the host. Events (validation, checkpoints) do not count as training time."""

    def __init__(self, device: torch.device, world: World, timing: Timing, dealt: Dealt, tallies: bool = True) -> None:
        self._world, self._timing = world, timing
        self._dealt, self._tallies = dealt, tallies
        # On a CPU the loop shares every update's table anyway; on a GPU each worker adds up its own rows until they are read.
        self._shared = device.type == "cpu"
        # Kept apart by group until they are read: sums over updates first, then over groups, on every layout.
        self._sum = torch.zeros(dealt.groups, TALLY, dtype=torch.float64, device=device)
        self._last = torch.zeros_like(self._sum)
        self._updates = 0
        self._timed = 0
        """Of these updates the ones whose time was measured: not those before a restart."""
        self._mark = time.perf_counter()
        self._data_mark = 0.0
        self._first = self._rest = (0.0, 0.0)
        """Images and seconds of the first log period, which warms up, and of all others: sums, as a run may have millions."""
        self._periods = 0

    def add(self, tally: Tensor) -> None:
        """One more update: the table of all workers on a CPU, of this worker on a GPU."""
        self._sum += tally
        self._last = tally
        self._updates += 1
        self._timed += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside is not training time."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._mark += time.perf_counter() - started

    def read(self, global_batch: int, metrics: bool = True, *, goes_on: bool = False) -> dict[str, Any]:
        """The means since the last log point, over all workers; starts the next period unless this one `goes_on`."""
        both = torch.stack([self._sum, self._last])
        memory = torch.zeros(self._world.size, dtype=both.dtype, device=both.device)
        memory[self._world.rank] = peak_memory(both.device)
        self._world.sum_over_all([memory] if self._shared else [both, memory])
        total, last = self._over_groups(both[0]), self._over_groups(both[1])
        self._timing.settle()
        elapsed = max(time.perf_counter() - self._mark, 1e-9)
        images = self._timed * global_batch
        waited = self._timing.seconds["data"] - self._data_mark
        record: dict[str, Any] = {}
        if metrics and total[SAMPLES] and last[SAMPLES]:
            record["loss"] = total[LOSS] / total[SAMPLES]
            record["loss_batch"] = last[LOSS] / last[SAMPLES]
            record["accuracy"] = 100 * total[TOP1] / total[SAMPLES]
            record["accuracy_batch"] = 100 * last[TOP1] / last[SAMPLES]
        record["images_per_second"] = images / elapsed
        record["update_seconds"] = elapsed / max(1, self._timed)
        record["data_wait"] = waited / elapsed
        record["memory_mib"] = max(memory.tolist())
        if self._periods:
            self._rest = (self._rest[0] + images, self._rest[1] + elapsed)
        else:
            self._first = (images, elapsed)
        self._periods += 1
        if goes_on:
            return record
        self._sum.zero_()
        self._updates = self._timed = 0
        self._data_mark = self._timing.seconds["data"]
        self._mark = time.perf_counter()
        return record

    def mean_rate(self) -> float:
        """Images per second over the log periods without the first; with it if there is no other."""
        images, elapsed = self._rest if self._periods > 1 else self._first
        return images / max(1e-9, elapsed)

    def _over_groups(self, table: Tensor) -> list[float]:
        nodes = [(group, group + 1) for group in range(self._dealt.groups)]
        return tree.total(self._dealt.groups, nodes, table.cpu().unbind(), torch.add).tolist()

    def state(self) -> dict[str, Any]:
        """The open period's sums by group, for the checkpoint; nothing right after a log point."""
        total = self._sum.clone()
        if not self._shared:
            self._world.sum_over_all([total])
        return {"sums": total.tolist() if total.any() else [], "updates": self._updates}

    def local_state(self) -> Callable[[], dict[str, Any]]:
        """What this worker knows of it now, for a call that may come later and waits for the device."""
        total, last, updates = self._sum.clone(), self._last, self._updates
        # A log point that was cut short is made again, and tells of the last update by itself.
        return lambda: {"sums": total.tolist() if total.any() else [], "updates": updates, "last": last.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on in the open period: every worker takes the rows that it will add to."""
        mine = range(self._dealt.groups) if self._shared else self._dealt.lanes[self._world.lane]
        stored = torch.tensor(state["sums"], dtype=torch.float64)
        if stored.numel() and stored.shape != self._sum.shape:
            raise ValueError(f"sums of shape {tuple(stored.shape)}, not {tuple(self._sum.shape)}")
        if (self._tallies or self._shared) and mine and stored.numel():
            self._sum[mine.start : mine.stop] = stored[mine.start : mine.stop].to(self._sum.device)
            last = torch.tensor(state.get("last", []), dtype=torch.float64)
            if last.shape == self._sum.shape:
                self._last[mine.start : mine.stop] = last[mine.start : mine.stop].to(self._sum.device)
        # The time of the interrupted period is lost, so its updates do not count towards the throughput.
        self._updates, self._timed = int(state["updates"]), 0
        self._data_mark = self._timing.seconds["data"]


def peak_memory(device: torch.device) -> float:
    """MiB: the most memory allocated on the accelerator, or resident on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return peak_resident() / 2**20


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was given: a GPU works on while the host's clock runs."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
