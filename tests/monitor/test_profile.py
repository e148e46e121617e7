"""Profiles of a small network: what is written, and that its figures are those of the network."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from tests.monitor import trace_format
from torch import nn

from conveyor.errors import UserError
from conveyor.monitor.profile import TorchProfiler
from conveyor.monitor.worker_profile import make_worker_profile
from conveyor.options import Options
from conveyor.options.run import RunOptions


def train(folder: Path, level: str, updates: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 5))
    profiler = TorchProfiler(level, folder, 0)
    profiler.attach(model)
    for _ in range(updates):
        model(torch.randn(2, 3, 8, 8)).sum().backward()
        profiler.step()
    profiler.close()
    return model


def test_layers_with_shapes_bytes_and_a_trace_that_perfetto_reads(tmp_path: Path) -> None:
    model = train(tmp_path, "layers", updates=6)
    layers = {row["name"]: row for row in json.loads((tmp_path / "layers.json").read_text())}
    assert set(layers) == {"0", "1", "2", "3"}
    assert layers["0"]["shape"] == "[2, 8, 8, 8]"
    assert layers["0"]["bytes"] == 2 * 8 * 8 * 8 * 4
    assert layers["0"]["parameters"] == 8 * 27 + 8
    assert layers["3"]["peak_bytes"] == 3 * 4096 + 2 * 5 * 4
    assert {row["calls"] for row in layers.values()} == {3}
    assert sum(row["share"] for row in layers.values()) == pytest.approx(1.0)
    operators = json.loads((tmp_path / "operators.json").read_text())
    assert any("convolution" in row["name"] and "[2, 3, 8, 8]" in row["shapes"] for row in operators)
    with gzip.open(tmp_path / "trace-0.json.gz", "rt", encoding="utf-8") as file:
        trace = trace_format.parse(file.read())
    assert trace_format.faults(trace) == []
    assert sum(event.get("name") == "aten::conv2d" for event in trace["traceEvents"]) == 3
    assert "layer" in (tmp_path / "profile.txt").read_text()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ({"ph": "X", "name": "a", "ts": 1, "pid": 0, "tid": 0}, "lasts None"),
        ({"ph": "X", "name": "a", "ts": -1, "dur": 1, "pid": 0, "tid": 0}, "time is -1"),
        ({"ph": "X", "name": "a", "ts": 1, "dur": 1, "tid": 0}, "pid is None"),
        ({"ph": "?", "name": "a"}, "known kind"),
        ({"ph": "s", "name": "a", "ts": 1, "pid": 0, "tid": 0}, "without id"),
        ({"ph": "X", "name": "late", "ts": 5, "dur": 10, "pid": 0, "tid": 0}, "ends after"),
    ],
)
def test_the_check_of_traces_finds_faults(event: dict[str, object], fault: str) -> None:
    good = {"ph": "X", "name": "a", "ts": 0, "dur": 8, "pid": 0, "tid": 0}
    assert trace_format.faults({"traceEvents": [good]}) == []
    (found,) = trace_format.faults({"traceEvents": [good, event]})
    assert fault in found


def test_a_trace_must_be_strict_json() -> None:
    with pytest.raises(ValueError, match="NaN"):
        trace_format.parse('{"traceEvents": [{"ts": NaN}]}')


def test_a_run_of_two_updates_is_still_profiled(tmp_path: Path) -> None:
    train(tmp_path, "light", updates=2)
    assert json.loads((tmp_path / "operators.json").read_text())
    assert json.loads((tmp_path / "layers.json").read_text()) == []


@pytest.mark.parametrize("updates", [0, 1])
def test_a_run_that_is_too_short_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture, updates: int) -> None:
    train(tmp_path / "new", "layers", updates=updates)
    assert "too short" in caplog.text
    assert not (tmp_path / "new").exists()


def test_off_is_free_and_a_wrong_level_is_named(tmp_path: Path) -> None:
    make_worker_profile(RunOptions(), tmp_path, 0, nn.Linear(1, 1), on_cpu=False).close()
    assert not any(tmp_path.iterdir())
    with pytest.raises(UserError, match="did you mean 'light'"):
        Options().updated({"profile": "ligth"}).check()
