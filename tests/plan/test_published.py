"""Forecasts beside published figures for ResNet-50 (sources and the whole table: docs/planning.md)."""

import pytest

from conveyor.data.subject import planned
from conveyor.options import Options
from conveyor.plan import planner
from conveyor.plan.simulator import Cluster, forecast

A100 = [
    "devices=8",
    "tflops=312",
    "memory_bandwidth=2TB/s",
    "inner=300GB/s",
    "link=1600Gbit",
    "memory=80GiB",
    "reduce=auto",
]
"""The data sheet's numbers; nothing is fitted."""
IPU = [
    "devices=64",
    "tflops=60",
    "memory_bandwidth=47TB/s",
    "inner=64GB/s",
    "link=400Gbit",
    "memory=64GiB",
    "reduce=auto",
    "overlap=0",
]
"""tflops is fitted to the time to train on 16 devices: what the chip sustains is far from its peak."""
OPTIONS = Options().replace(model="resnet50", precision="16.16", num_classes=1000, image_size=224)


def predicted(words: list[str], devices: int, micro_batch: int, accumulation: int) -> float:
    cluster = Cluster.parse(words)
    cluster = Cluster.parse([*words, f"hosts={-(-devices // cluster.devices)}"])
    model = planner.cost_model(OPTIONS, planned(OPTIONS), cluster.hardware(), measure=False)
    stages = [model.stage(0, len(model), micro_batch)]
    one = forecast(
        cluster,
        stages,
        replicas=devices,
        accumulation=accumulation,
        micro_batch=micro_batch,
        schedule="gpipe",
        updates=2,
    )
    return one.images_per_second


@pytest.mark.parametrize(
    ("words", "devices", "micro_batch", "accumulation", "published"),
    [
        (A100, 8, 408, 1, 26_345),
        (A100, 64, 51, 1, 166_636),
        (A100, 1024, 35, 1, 2_307_533),
    ],
)
def test_within_a_fifth(words: list[str], devices: int, micro_batch: int, accumulation: int, published: float) -> None:
    assert predicted(words, devices, micro_batch, accumulation) == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize(
    ("devices", "accumulation", "published"), [(16, 10, 29_645), (64, 3, 108_152), (128, 2, 185_555), (256, 2, 348_380)]
)
def test_within_a_tenth(devices: int, accumulation: int, published: float) -> None:
    """The published rate is that of epochs without a pause."""
    assert predicted(IPU, devices, 20, accumulation) == pytest.approx(published, rel=0.1)
