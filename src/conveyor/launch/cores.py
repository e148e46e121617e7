"""The thread budget: which cores each worker of this machine may use, and how that is enforced.

More runnable threads than cores cost a factor of 3 to 7 (every OpenMP barrier spins), so the cores are dealt to the
workers without overlap, each worker is pinned to its share, and it starts one thread per core of it. Waiting threads
sleep where cores are shared, with each other or with other programs.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conveyor.layout import others_want_cores
from conveyor.options.units import many

NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True, slots=True)
class Budget:
    """The cores of one worker (empty: not pinned) and its number of threads."""

    cores: tuple[int, ...]
    threads: int

    def environment(self) -> dict[str, str]:
        """What a worker must see before it imports torch."""
        found = {"OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        if not self.cores or others_want_cores():
            found["OMP_WAIT_POLICY"] = "PASSIVE"
        return found


def available_cores() -> tuple[int, ...]:
    """The cores this process may run on, in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def numa_nodes(cores: Sequence[int], root: Path = NODES) -> list[tuple[int, ...]]:
    """The given cores by NUMA node; one group of all of them when the system does not report nodes."""
    groups: list[tuple[int, ...]] = []
    for folder in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        members = _cpu_list((folder / "cpulist").read_text()) if (folder / "cpulist").exists() else set()
        group = tuple(core for core in cores if core in members)
        if group:
            groups.append(group)
    return groups if sum(map(len, groups)) == len(cores) else [tuple(cores)]


def deal_cores(
    num_workers: int, cores: Sequence[int], threads: int | None = None, numa: Sequence[Sequence[int]] | None = None
) -> list[Budget]:
    """Deal `cores` to the workers, contiguously; with `numa`, no worker crosses a node while workers >= nodes.

    `threads` overrules the share: at most one worker per core is pinned, oversubscribed workers share the cores
    unpinned.
    """
    if numa is not None and len(numa) > 1 and num_workers >= len(numa):
        return _deal_over_nodes(num_workers, numa, threads)
    wanted = threads or max(1, len(cores) // num_workers)
    if wanted * num_workers > len(cores):
        return [Budget((), wanted)] * num_workers
    share = len(cores) // num_workers
    pinned = [tuple(cores[i * share : (i + 1) * share]) for i in range(num_workers)]
    return [Budget(mine, min(wanted, len(mine)) if threads is None else wanted) for mine in pinned]


def _deal_over_nodes(num_workers: int, numa: Sequence[Sequence[int]], threads: int | None) -> list[Budget]:
    budgets: list[Budget] = []
    base, extra = divmod(num_workers, len(numa))
    for index, node in enumerate(numa):
        budgets += deal_cores(base + (index < extra), node, threads)
    return budgets


def describe(budgets: Sequence[Budget]) -> str:
    """`"2 workers x 1 thread, pinned to cores 0 | 1"`."""
    threads = sorted({budget.threads for budget in budgets})
    noun = "thread" if threads == [1] else "threads"
    workers = f"{many(len(budgets), 'worker')} x {'/'.join(map(str, threads))} {noun}"
    if not all(budget.cores for budget in budgets):
        return f"{workers}, not pinned (more threads than cores)"
    shown = [_ranges(budget.cores) for budget in budgets[:8]]
    more = " | ..." if len(budgets) > 8 else ""
    return f"{workers}, pinned to cores {' | '.join(shown)}{more}"


def pin(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Pin this process to the cores that the launcher wrote into its environment; returns them."""
    text = environment.get("CONVEYOR_CORES", "")
    cores = _cpu_list(text) & set(available_cores())
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    return tuple(sorted(cores))


def _ranges(cores: Sequence[int]) -> str:
    if len(cores) > 2 and cores[-1] - cores[0] == len(cores) - 1:
        return f"{cores[0]}-{cores[-1]}"
    return ",".join(map(str, cores))


def _cpu_list(text: str) -> set[int]:
    """`0-3,8` as a set."""
    cores: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        cores |= set(range(int(first), int(last or first) + 1))
    return cores
