"""Validation beside training on a device of its own (`--validation-device-ids`)."""

from pathlib import Path

import pytest
import torch
from tests.run.runs import train

from conveyor.options.batch import LayoutOptions
from conveyor.run import assemble
from conveyor.world.world import validation_device


def test_workers_take_the_named_devices_in_turn() -> None:
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    named = LayoutOptions(validation_device_ids=(2, 3))
    assert [validation_device(named, cuda, rank) for rank in range(3)] == [torch.device("cuda", n) for n in (2, 3, 2)]
    assert validation_device(LayoutOptions(), cuda, 1) == cuda
    assert validation_device(named, cpu, 1) == cpu


@pytest.mark.parametrize("mode", ["during", "after"])
def test_the_weights_are_carried_over(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cpu:0` is another device than `cpu` for the program, and the same for its arithmetic."""
    settings = {"updates": 4, "updates_per_checkpoint": 2, "validation": True, "validation_mode": mode}
    train(tmp_path / "same", **settings)
    asked: list[int] = []

    def elsewhere(options: LayoutOptions, device: torch.device, rank: int) -> torch.device:
        asked.append(rank)
        return torch.device("cpu", 0)

    monkeypatch.setattr(assemble, "validation_device", elsewhere)
    train(tmp_path / "other", **settings)
    assert asked == [0]
    one, other = ((tmp_path / name / "validation.csv").read_text().splitlines() for name in ("same", "other"))
    columns = one[0].split(",")
    kept = [index for index, name in enumerate(columns) if "second" not in name and "time" not in name]
    assert len(one) > 1
    assert [[row.split(",")[index] for index in kept] for row in one] == [
        [row.split(",")[index] for index in kept] for row in other
    ]
