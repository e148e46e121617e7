"""Measured costs of units: every unit has its own, and measuring leaves no trace."""

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conveyor import models
from conveyor.errors import UserError
from conveyor.measure import parts
from conveyor.models import splits, units
from conveyor.models.layers import norms
from conveyor.options import Options
from conveyor.pipeline.assign import Part
from conveyor.pipeline.cut import cut
from conveyor.run import autosplit, folder
from conveyor.spec import RunSpec, resolve
from conveyor.training.stage_lane import refuse_shared


def test_every_look_at_the_clock_belongs_to_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks once per look: forward one tick for each unit, backward one for each that has a gradient."""
    ticks = itertools.count()
    monkeypatch.setattr(parts, "now", lambda: float(next(ticks)))
    model = models.build("resnet8", num_classes=10)
    found = units.trace(model, 16)
    seconds = [sum(both) for both in units.unit_seconds(model, torch.rand(2, 3, 16, 16), repeats=1).values()]
    assert len(seconds) == len(found)
    # In place, two units share one tensor: the gradient of the first is complete no earlier than that of the second.
    assert set(seconds) <= {1.0, 2.0}
    convolutions = [one for one, unit in zip(seconds, found, strict=True) if unit.kind == "Conv2d"]
    assert set(convolutions) == {2.0}


def test_measuring_leaves_no_trace() -> None:
    model = models.build("resnet8", num_classes=10)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = torch.rand(2, 3, 16, 16)
    random = torch.get_rng_state()
    assert all(sum(both) > 0 for both in units.unit_seconds(model, images, repeats=1).values())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(tensor.any() for tensor in norms.pending(model))


def staged(**more: object) -> RunSpec:
    options = {
        "model": "resnet8",
        "data": "digits",
        "layout": "1x2",
        "stages": 2,
        "micro_batch_size": 2,
        "device": "cpu",
    }
    return resolve(Options().replace(**{**options, **more}))


def test_stages_follow_measured_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = staged(splits=("auto",))
    assert autosplit.is_automatic(spec)
    found = units.trace(models.build("resnet8", num_classes=10, in_channels=1), 8, 1)
    slow_head = {unit.name: (1.0, 1000.0 * (unit is found[-1])) for unit in found}
    monkeypatch.setattr(units, "unit_seconds", lambda model, images: slow_head)
    names, note = autosplit.choose(spec, None, torch.device("cpu"))
    assert splits.resolve("resnet8", found, names) == [len(found) - 1]
    assert "measured" in note
    assert not autosplit.is_automatic(staged(splits=names))
    assert not autosplit.is_automatic(staged(splits=("auto",), layout="2x1", accumulation=2))


def test_a_run_that_goes_on_keeps_its_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(units, "unit_seconds")
    spec = staged(splits=("layer2.0",))
    folder.write_options(tmp_path, folder.resolved_options(spec, tmp_path))
    names, note = autosplit.choose(staged(), tmp_path, torch.device("cpu"))
    assert names == ("layer2.0",)
    assert "as before" in note


class Tied(nn.Module):
    """One layer at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.twice(torch.relu(self.twice(self.first(x))))
        return y


def test_a_parameter_of_several_workers_is_refused() -> None:
    stages = cut(Tied(), [1, 3])
    refuse_shared(stages, [Part(0, 0, 1), Part(1, 1, 3)])
    refuse_shared(stages, [Part(1, 0, 1), Part(0, 1, 3)])
    with pytest.raises(UserError, match=r"twice\.(weight|bias) is used in stages of different workers"):
        refuse_shared(stages, [Part(0, 0, 2), Part(1, 2, 3)])


def test_a_parameter_of_several_parts_of_one_worker_is_refused() -> None:
    """Each part would sum its own share over the groups, and the gradient would be that of one of them."""
    stages = cut(Tied(), [2, 3])
    refuse_shared(stages, [Part(0, 0, 3)])
    with pytest.raises(UserError, match=r"twice\.(weight|bias) is used in stages that run apart"):
        refuse_shared(stages, [Part(0, 0, 1), Part(1, 1, 2), Part(0, 2, 3)])
