"""Training steps beside a loop that one would write."""

import pytest

from conveyor.bench.training_peers import Setting, measure


def test_a_real_competition() -> None:
    peer = "plain PyTorch, NCHW"
    setting = Setting("resnet8", 16, 4, 10)
    record = measure(setting, threads=1, rounds=2, steps=1, only=[peer])
    assert {name for name in record.results if name.endswith(" rate")} == {"conveyor rate", f"{peer} rate"}
    assert record.results["GEMM"].unit == "GFLOP/s"
    for share, rate, roof in zip(
        *(record.results[name].values for name in ("conveyor share of GEMM", "conveyor rate", "GEMM")), strict=True
    ):
        assert share == pytest.approx(100 * rate * setting.flops_per_image / (roof * 1e9))
    assert len(record.results[f"ratio to {peer}"].values) == 2
