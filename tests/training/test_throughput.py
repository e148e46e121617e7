"""Operations of a network, the machine's GEMM rate, memory of recomputation."""

import json
from pathlib import Path

import pytest
import torch
from tests.training.runs import small_spec
from torch import nn

from conveyor import models
from conveyor.models import catalogue
from conveyor.training import peak
from conveyor.training.build import build_model, place_model
from conveyor.training.memory import recompute_note
from conveyor.training.throughput import share_of_peak, training_flops


def test_operations_are_six_times_the_multiply_adds() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1), nn.Flatten(), nn.Linear(8 * 4 * 4, 10))
    assert training_flops(layers, 8, 3) == 6 * (8 * 4 * 4 * 3 * 9 + 8 * 4 * 4 * 10)
    model = models.build("resnet20", num_classes=10)
    assert training_flops(model, 32, 3) == pytest.approx(
        6 * catalogue.counts()["cifar_resnet20"].multiply_adds, rel=0.01
    )
    assert model.training


def test_the_rate_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path))
    calls: list[float] = []

    def measured(device: torch.device) -> float:
        calls.append(1)
        return 5e9

    monkeypatch.setattr(peak, "measure", measured)
    cpu = torch.device("cpu")
    assert [peak.gemm_rate(cpu, 1), peak.gemm_rate(cpu, 1), peak.gemm_rate(cpu, 2)] == [5e9] * 3
    assert len(calls) == 2
    (tmp_path / "gemm.json").write_text("not JSON")
    assert peak.gemm_rate(cpu, 1) == 5e9
    assert json.loads((tmp_path / "gemm.json").read_text())[peak.machine_key(cpu, 1)] == 5e9
    assert share_of_peak(2e6, small_spec(), cpu)(250.0) == pytest.approx(0.1)


def test_the_measurement_takes_the_best_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "SIZE", 8)
    times = iter([0.0, 1.0, 3.0, 4.0, 4.5, 5.0, 11.0])
    assert peak.measure(torch.device("cpu"), seconds=4.6, clock=lambda: next(times)) == 2.0 * 8**3 / 0.5


def test_recomputation_keeps_less() -> None:
    spec = small_spec(recompute=["block"])
    model = place_model(build_model(spec), spec, torch.device("cpu"))
    note = recompute_note(model, spec, torch.device("cpu"))
    assert note is not None
    kept, whole = (float(words.split(" MiB")[0].split()[-1]) for words in note.split("instead of"))
    assert 0 < kept < whole
    plain = small_spec()
    assert (
        recompute_note(place_model(build_model(plain), plain, torch.device("cpu")), plain, torch.device("cpu")) is None
    )
