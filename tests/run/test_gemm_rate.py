"""Operations of a network, the machine's GEMM rate, memory of recomputation."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from tests.run.runs import small_spec
from torch import nn

from conveyor import models
from conveyor.models import catalogue
from conveyor.run import gemm_rate
from conveyor.run.gemm_rate import share_of_peak, training_flops
from conveyor.run.recompute_memory import recompute_note
from conveyor.training.build_model import build_model, place_model


def test_operations_are_six_times_the_multiply_adds() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1), nn.Flatten(), nn.Linear(8 * 4 * 4, 10))
    assert training_flops(layers, 8, 3) == 6 * (8 * 4 * 4 * 3 * 9 + 8 * 4 * 4 * 10)
    model = models.build("resnet20", num_classes=10)
    assert training_flops(model, 32, 3) == pytest.approx(
        6 * catalogue.counts()["cifar_resnet20"].multiply_adds, rel=0.01
    )
    assert model.training


def test_the_best_of_the_first_measurements_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path))
    rates, threads = iter([5e9, 3e9, 8e9, 7e9, 2e9, 1e9, 4e9]), []

    def measured(device: torch.device) -> float:
        threads.append(torch.get_num_threads())
        return next(rates)

    monkeypatch.setattr(gemm_rate, "measure", measured)
    cpu, before = torch.device("cpu"), torch.get_num_threads()
    assert [gemm_rate.gemm_rate(cpu, 3) for _ in range(8)] == [5e9, 5e9, *[8e9] * 6]
    assert threads == [3] * gemm_rate.ENOUGH
    assert gemm_rate.gemm_rate(cpu, 1) == 1e9, "another number of threads is another rate"
    assert torch.get_num_threads() == before
    assert gemm_rate.gemm_rate(cpu, 3) == 8e9, "both are remembered"
    for damaged in ("not JSON", "[1]", json.dumps({gemm_rate.machine_key(cpu, 3): 8e9})):
        (tmp_path / "gemm.json").write_text(damaged)
        monkeypatch.setattr(gemm_rate, "measure", lambda device: 6e9)
        assert gemm_rate.gemm_rate(cpu, 3) == 6e9
        assert json.loads((tmp_path / "gemm.json").read_text()) == {gemm_rate.machine_key(cpu, 3): [6e9, 1]}


def test_the_share_of_several_pinned_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker pinned to one core of two cannot measure both."""
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path))
    monkeypatch.setattr(gemm_rate, "measure", lambda device: 5e9 * torch.get_num_threads())
    spec = small_spec(replicas=2)
    cpu = torch.device("cpu")
    for workers, threads, roof in ((1, 1, 5e9), (1, 2, 1e10), (2, 1, 1e10), (3, 2, 3e10)):
        layout = dataclasses.replace(spec.layout, lanes=workers, threads=threads)
        assert share_of_peak(2e6, spec.replace(layout=layout), cpu)(250.0) == pytest.approx(5e8 / roof)


def test_the_measurement_takes_the_best_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_rate, "SIZE", 8)
    times = iter([0.0, 1.0, 3.0, 4.0, 4.5, 5.0, 11.0])
    assert gemm_rate.measure(torch.device("cpu"), seconds=4.6, clock=lambda: next(times)) == 2.0 * 8**3 / 0.5


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
