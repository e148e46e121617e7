"""When workers are started again, those before them hand over the state of the run in memory.

A worker that loses a peer, or whose launcher is going to start all workers again because a machine joins, writes what
it holds into a folder in memory that the launcher made for the job, and ends. The
workers of the next start take the newest update for which the folders of all machines hold every stage; a machine that
has nothing gets it from a peer. With depth 1 every worker holds the whole state and nothing is copied while the run goes
well. A stage of a pipeline is held by one worker of each lane, and workers can be one update apart when they stop: so each
keeps copies of its last two updates, and with a single lane those of the stage before it too (the state of two stages,
twice, in memory; each update waits for its bytes). A single lane of more than two stages also waits for all of them: the
neighbours of a stage that has not passed on its copies could otherwise begin the next update, and its death would cost both.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conveyor.checkpoint import folder as checkpoints
from conveyor.checkpoint import store
from conveyor.checkpoint.state import Buffers, State
from conveyor.errors import UserError
from conveyor.training.session import Session
from conveyor.world.world import World

VARIABLE = "CONVEYOR_HANDOVER"
"""The folder, on this machine."""
GENERATIONS = 2
ANNOUNCED = "start-again"
"""A file in the folder: SIGTERM now comes from the launcher, which is going to start the workers again."""


@dataclass(slots=True)
class _Copy:
    """The state of some stages after one update."""

    progress: Callable[[], dict[str, Any]]
    due: bool
    """Whether the events of the update are still to come."""
    stages: dict[int, State] = field(default_factory=dict)


class Handover:
    """What this worker can hand over. `begin` comes first; `after_update` and `after_events` follow each update."""

    def __init__(self, session: Session, folder: Path | None) -> None:
        self._session, self._folder = session, folder
        self._copies: dict[int, _Copy] = {}
        self._buffers = [Buffers() for _ in range(GENERATIONS)]
        self._before: list[list[Any]] | None = None
        """Names, shapes and types of the tensors of the stage before this one."""
        self._begun = True
        """Whether the update after the last complete one has begun."""

    def begin(self) -> None:
        """Nothing was computed since this worker was started: it can hand over where it starts from."""
        self.after_update()
        self.after_events()

    def after_update(self) -> None:
        """The weights are those of a new update; its events are still to come."""
        if self._folder is None:
            return
        self._begun = False
        session, world = self._session, self._session.world
        copy = self._copies[session.update] = _Copy(session.local_progress(), due=True)
        for old in sorted(self._copies)[:-GENERATIONS]:
            del self._copies[old]
        if world.depth > 1:
            copy.stages[world.stage] = self._buffers[session.update % GENERATIONS].copy(session.local_state())
            if world.lanes == 1:
                copy.stages[(world.stage - 1) % world.depth] = self._stage_before(copy.stages[world.stage])
                if world.depth > 2:
                    world.sum_over_stages([torch.zeros(1)])

    def renew(self) -> None:
        """The tensors of the state are others from now on."""
        self._before = None

    def after_events(self) -> None:
        """Log points, validation and checkpoint of the update are done."""
        if self._folder is not None:
            copy = self._copies[self._session.update]
            copy.progress, copy.due = self._session.local_progress(), False
            self._begun = self._session.update < self._session.spec.length.updates_total

    def write(self) -> None:
        """Leave what this worker holds to the next start, unless an update was half done."""
        session, world = self._session, self._session.world
        if self._folder is None or session.updater.changing or not self._copies:
            return
        for old in self._folder.glob(f"{world.rank}-*"):
            shutil.rmtree(old, ignore_errors=True)
        for update, copy in self._copies.items():
            if world.depth == 1:
                if update != session.update:
                    continue
                copy.stages[0] = session.local_state()
            for stage, state in copy.stages.items():
                state.progress = copy.progress()
                state.progress |= {"events_due": copy.due, "attempted": session.update + self._begun}
                name = f"{world.rank}-{update}-{stage}of{world.depth}"
                checkpoints.save(self._folder / name, state)

    def _stage_before(self, own: State) -> State:
        """The state of the stage before this one, which its worker sends; this one's goes to the next."""
        world = self._session.world
        described, flat = _flattened(own)
        if self._before is None:
            self._before = world.of_stages(described)[(world.stage - 1) % world.depth]
        size = sum(_bytes_of(shape, dtype) for _, _, shape, dtype in self._before)
        return _unflattened(self._before, world.pass_on(flat, size))


def folder_here() -> Path | None:
    """Where this machine's workers hand over; None when nobody would start them again."""
    name = os.environ.get(VARIABLE, "")
    return Path(name) if name else None


def announce_start() -> None:
    """For a launcher: workers that get SIGTERM from now on hand over instead of ending the run."""
    folder = folder_here()
    if folder is not None:
        (folder / ANNOUNCED).touch()


def withdraw_start() -> None:
    """For a launcher: SIGTERM means again that the run is to end."""
    folder = folder_here()
    if folder is not None:
        (folder / ANNOUNCED).unlink(missing_ok=True)


def start_is_announced() -> bool:
    """Whether this machine's launcher is going to start its workers again."""
    folder = folder_here()
    return folder is not None and (folder / ANNOUNCED).exists()


def keep() -> Path | None:
    """Save what this machine's workers handed over as a checkpoint of the run, when nobody will be started to take it.

    Returns its path; None when the run has one as new, or other machines hold some of the stages.
    """
    found, _ = _found(folder_here())
    complete = _complete(found)
    if not complete:
        return None
    update, depth = max(complete)
    whole = _whole([checkpoints.load(found[update, stage, depth]) for stage in range(depth)])
    run = Path(str(whole.options.get("run_dir")))
    saved = store.numbered(run)
    if not run.is_dir() or (saved and int(saved[-1].name) >= update):
        return None
    try:
        return checkpoints.save(run / store.CHECKPOINTS / str(update), whole)
    except (OSError, UserError):
        # Another machine of the job may be saving the same.
        return None


def take(folder: Path | None, world: World, newer_than: int) -> tuple[State | None, int]:
    """The newest state that other workers left, if it is newer than update `newer_than`; every worker calls it.

    And the last update that any of those workers had begun; 0 if nothing is left of them.
    """
    found, begun = _found(folder)
    lists = world.of_all([begun, [list(one) for one in found]])
    begun = max(one for one, _ in lists)
    holders: dict[tuple[int, int, int], int] = {}
    for rank, (_, entries) in enumerate(lists):
        for update, stage, depth in entries:
            holders.setdefault((update, stage, depth), rank)
    complete = [key for key in _complete(holders) if key[0] > newer_than]
    if not complete:
        return None, begun
    update, depth = max(complete)
    parts = []
    for stage in range(depth):
        source = holders[update, stage, depth]
        mine = checkpoints.load(found[update, stage, depth]) if world.rank == source else None
        parts.append(world.broadcast_state(mine, source))
    return _whole(parts), begun


def _complete(keys: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(update, depth) of which every stage is among `keys`, each an (update, stage, depth)."""
    counts = Counter((update, depth) for update, _, depth in keys)
    return [(update, depth) for (update, depth), count in counts.items() if count == depth]


def _whole(parts: Iterable[State]) -> State:
    """The state of a run whose stages are `parts`."""
    whole = State(model={})
    for part in parts:
        whole.model |= part.model
        whole.optimizer |= part.optimizer
        whole.averages |= part.averages
        whole.progress, whole.options = part.progress, part.options
    return whole


def _found(folder: Path | None) -> tuple[dict[tuple[int, int, int], Path], int]:
    """(update, stage, depth) of every complete state in the folder, and the last update that its workers had begun."""
    found, begun = {}, 0
    for path in folder.glob("[0-9]*-*-*of*") if folder is not None else ():
        _, update, part = path.name.split("-")
        stage, _, depth = part.partition("of")
        try:
            begun = max(begun, int(checkpoints.load(path).progress.get("attempted", 0)))
        except UserError:
            continue
        found[int(update), int(stage), int(depth)] = path
    return found, begun


def _flattened(state: State) -> tuple[list[list[Any]], Tensor]:
    """Names, shapes and types of all tensors, and their bytes, uint8 [n]."""
    entries = [(group, name, one) for group, tensors in state.groups().items() for name, one in tensors.items()]
    described = [[group, name, list(one.shape), str(one.dtype)[6:]] for group, name, one in entries]
    parts = [one.contiguous().view(-1).view(torch.uint8) for _, _, one in entries if one.numel()]
    return described, torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8)


def _unflattened(described: list[list[Any]], flat: Tensor) -> State:
    state = State(model={})
    offset = 0
    for group, name, shape, dtype in described:
        size = _bytes_of(shape, dtype)
        # A copy of its own: views of a type need aligned memory.
        part = flat[offset : offset + size].clone()
        getattr(state, group)[name] = part.view(getattr(torch, dtype)).view(shape)
        offset += size
    return state


def _bytes_of(shape: list[int], dtype: str) -> int:
    return torch.Size(shape).numel() * getattr(torch, dtype).itemsize
