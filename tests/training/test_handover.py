"""What a worker says of the updates that it had begun when a peer was lost, and when it may begin the next one."""

import functools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from conveyor.checkpoint import folder as checkpoints
from conveyor.checkpoint.state import State
from conveyor.training.handover import Handover
from conveyor.world.distributed import ProcessWorld
from conveyor.world.world import World


class FirstStage(World):
    """The first of two stages; the other is gone when `lost` is set."""

    lost = False

    def __init__(self) -> None:
        super().__init__(depth=2)

    def of_stages(self, value: Any) -> list[Any]:
        return [value, value]

    def pass_on(self, flat: Tensor, size: int) -> Tensor:
        if self.lost:
            raise RuntimeError("Connection closed by peer")
        return flat


@pytest.mark.parametrize(
    ("lost_in", "update", "attempted"),
    [("the next update", 2, 3), ("the copy", 1, 2), ("the events", 2, 2), ("the end", 3, 3), ("the first copy", 0, 1)],
)
def test_an_update_counts_as_begun_once_it_has_begun(lost_in: str, update: int, attempted: int, tmp_path: Path) -> None:
    world = FirstStage()
    session: Any = SimpleNamespace(
        update=0,
        world=world,
        updater=SimpleNamespace(changing=False),
        spec=SimpleNamespace(length=SimpleNamespace(updates_total=3)),
        local_progress=lambda: functools.partial(dict, update=session.update),
        local_state=lambda: State(model={"weight": torch.full((2,), float(session.update))}),
    )
    handover = Handover(session, tmp_path)
    handover.begin()
    for session.update in range(1, 4):
        world.lost = (lost_in, session.update) in (("the copy", 2), ("the first copy", 1))
        try:
            handover.after_update()
        except RuntimeError:
            break
        if (lost_in, session.update) == ("the events", 2):
            break
        handover.after_events()
        if (lost_in, session.update) == ("the next update", 2):
            break
    handover.write()
    whole = [one for one in range(4) if len(list(tmp_path.glob(f"0-{one}-*"))) == 2]
    assert max(whole) == update
    state = checkpoints.load(next(tmp_path.glob(f"0-{update}-*")))
    assert state.progress["attempted"] == attempted


def passing_on(rank: int, folder: str, late: int) -> list[bool]:
    """Two updates of a stage of four; `late` waits before it passes on its copies. Whether any began the next one by then."""
    place, seen = Path(folder), []

    class Stage(ProcessWorld):
        def pass_on(self, flat: Tensor, size: int) -> Tensor:
            if rank == late:
                until = time.monotonic() + 2
                while not (begun := sorted(place.glob(f"begun-{session.update}-*"))) and time.monotonic() < until:
                    time.sleep(0.01)
                seen.append(bool(begun))
            return super().pass_on(flat, size)

    session: Any = SimpleNamespace(
        update=0,
        world=Stage(1, 4),
        spec=SimpleNamespace(length=SimpleNamespace(updates_total=9)),
        local_progress=lambda: functools.partial(dict, update=session.update),
        local_state=lambda: State(model={f"weight{rank}": torch.full((2,), float(session.update))}),
    )
    handover = Handover(session, place)
    for session.update in range(1, 3):
        handover.after_update()
        handover.after_events()
        (place / f"begun-{session.update}-{rank}").touch()
    return seen


@pytest.mark.parametrize("late", [0, 2])
def test_no_stage_begins_an_update_before_all_have_passed_on_the_last(late: int, pool: Any, tmp_path: Path) -> None:
    """A stage that dies late would take the update before with it, and its neighbour the one that it has begun."""
    assert pool.run(passing_on, 4, folder=str(tmp_path), late=late)[late] == [False, False]
