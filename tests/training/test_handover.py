"""What a worker says of the updates that it had begun when a peer was lost."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from conveyor.checkpoint import folder as checkpoints
from conveyor.checkpoint.state import State
from conveyor.training.handover import Handover
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
    [("the next update", 2, 3), ("the copy", 1, 2), ("the events", 2, 2), ("the end", 3, 3)],
)
def test_an_update_counts_as_begun_once_it_has_begun(lost_in: str, update: int, attempted: int, tmp_path: Path) -> None:
    world = FirstStage()
    session: Any = SimpleNamespace(
        update=0,
        world=world,
        updater=SimpleNamespace(changing=False),
        spec=SimpleNamespace(length=SimpleNamespace(updates_total=3)),
        progress=lambda local: {"update": session.update},
        local_state=lambda: State(model={"weight": torch.full((2,), float(session.update))}),
    )
    handover = Handover(session, tmp_path)
    for session.update in range(1, 4):
        world.lost = (lost_in, session.update) == ("the copy", 2)
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
    whole = [one for one in range(1, 4) if len(list(tmp_path.glob(f"0-{one}-*"))) == 2]
    assert max(whole) == update
    state = checkpoints.load(next(tmp_path.glob(f"0-{update}-*")))
    assert state.progress["attempted"] == attempted
