"""The answers of a teacher that are kept on the disk."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from conveyor.options import Options
from conveyor.run import teacher
from conveyor.spec import resolve


def test_answers_are_not_taken_from_a_machine_that_rounds_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache folder may be on a disk that several machines share."""
    spec = resolve(Options.from_mapping({"data": "digits", "model": "resnet8", "device": "cpu", "updates": 1}))
    module, loaded = nn.Linear(2, 2), SimpleNamespace(preprocessing=SimpleNamespace(to_json=dict))

    def key(device: str = "cpu") -> Any:
        return teacher._key(module, loaded, spec, torch.device(device))  # type: ignore[arg-type]

    here = key()
    assert key() == here
    assert key("cuda") != here
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    assert key() != here
