"""Proposals: they fit, they are the fastest, and their figures follow from the costs."""

import dataclasses
import itertools

import pytest

from conveyor.plan.choose import Wanted, no_proposal, proposals, propose, sizes
from conveyor.plan.costs import Linear, Model, UnitCost
from conveyor.plan.hardware import Hardware, this_cpu
from conveyor.plan.network import Link, Network

PERFECT = Link(1e30)
DEVICE = Hardware(flops=1e12, bandwidth=1e12, network=Network(PERFECT, PERFECT, 64))


def model(count: int = 8, weight: float = 10.0) -> Model:
    units = [
        UnitCost(
            f"block{index // 2}.{index % 2}",
            Linear(0.001, 0.01),
            Linear(0.002, 0.02),
            saved_bytes=100,
            boundary_bytes=40,
            output_bytes=50,
            weight_bytes=weight,
            block=f"block{index // 2}",
        )
        for index in range(count)
    ]
    return Model(units, input_bytes=30)


def test_one_device_is_the_sum_of_its_units() -> None:
    asked = Wanted(devices=1, global_batch=8, micro_batches=(4,), recompute=("none",), update_seconds_per_byte=0.0)
    best = proposals(model(), DEVICE, asked)[0]
    assert best.layout == "1x1"
    assert best.update_seconds == pytest.approx(2 * 8 * (0.003 + 4 * 0.03))
    assert best.images_per_second == pytest.approx(8 / best.update_seconds)
    assert best.bubble == pytest.approx(0.0)
    assert best.memory == (pytest.approx(3 * 80 + 8 * 400 + 2 * 50 * 4),)


@pytest.mark.parametrize(("slots", "depth"), [(8, 2), (8, 4), (200, 4)])
def test_a_perfect_network_leaves_the_textbook_bubble(slots: int, depth: int) -> None:
    asked = Wanted(devices=depth, global_batch=slots, micro_batches=(1,), update_seconds_per_byte=0.0)
    made = propose(model(), DEVICE, asked, 1, depth, 1, "1f1b", "none")
    assert made is not None
    assert made.bubble == pytest.approx((depth - 1) / (slots + depth - 1))
    assert made.update_seconds == pytest.approx((slots + depth - 1) * 8 / depth * 0.033)


def test_recomputation_trades_time_for_memory() -> None:
    asked = Wanted(devices=2, global_batch=32, micro_batches=(4,), update_seconds_per_byte=0.0)
    none, block, stage = (propose(model(), DEVICE, asked, 1, 2, 4, "gpipe", how) for how in ("none", "block", "stage"))
    assert none is not None
    assert block is not None
    assert stage is not None
    assert none.peak_memory > block.peak_memory > stage.peak_memory
    assert none.update_seconds < block.update_seconds == pytest.approx(stage.update_seconds)


def test_the_fastest_that_fits_comes_first() -> None:
    limit = 3 * 80 + 2000.0
    asked = Wanted(devices=4, global_batch=16, memory=limit, micro_batches=(1, 2, 4))
    found = proposals(model(), DEVICE, asked)
    assert all(one.peak_memory <= limit for one in found)
    rates = [round(one.images_per_second, 3) for one in found]
    assert rates == sorted(rates, reverse=True)
    every = [
        propose(model(), DEVICE, asked, 4 // depth, depth, micro, schedule, how)
        for depth, micro, schedule, how in itertools.product((1, 2, 4), (1, 2, 4), ("1f1b", "gpipe"), ("none", "block", "stage"))
    ]  # fmt: skip
    assert rates[0] == pytest.approx(max(round(one.images_per_second, 3) for one in every if one and one.fits))


def test_what_does_not_fit_is_explained() -> None:
    asked = Wanted(devices=2, global_batch=4, memory=50.0)
    assert proposals(model(), DEVICE, asked) == []
    assert "MiB per device and the limit is" in str(no_proposal(model(), asked, DEVICE))


def test_a_batch_that_no_layout_divides_is_not_told_as_too_little_memory() -> None:
    asked = Wanted(devices=3, global_batch=4, memory=1e9, depths=(1,))
    assert proposals(model(), DEVICE, asked) == []
    assert str(no_proposal(model(), asked, DEVICE)).startswith("no layout of 3 devices suits a global batch of 4")


def test_the_options_of_a_proposal_run_it() -> None:
    asked = Wanted(
        devices=4, global_batch=32, micro_batches=(4,), depths=(2,), schedules=("1f1b",), recompute=("block",)
    )
    options = proposals(model(), DEVICE, asked)[0].train_options()
    assert options == {
        "micro_batch_size": 4, "replicas": 2, "accumulation": 4, "layout": "2x2", "splits": ("block2.0",),
        "pipeline_schedule": "1f1b", "recompute": ("block",),
    }  # fmt: skip


def test_workers_beyond_the_cores_share_them_and_spare_cores_help_less() -> None:
    cpu = this_cpu(4, 1e11)
    assert cpu.slowdown(4) == 1.0
    assert cpu.slowdown(8) == 2.0
    assert 0.5 < cpu.slowdown(2) < 1.0
    assert DEVICE.slowdown(1000) == 1.0


def test_exchange_is_hidden_only_where_devices_can() -> None:
    slow = Network(Link(1e3), Link(1e3), 64)
    asked = Wanted(
        devices=2, global_batch=8, micro_batches=(4,), depths=(1,), recompute=("none",), update_seconds_per_byte=0.0
    )
    device = proposals(model(), dataclasses.replace(DEVICE, network=slow), asked)[0]
    cpu = proposals(model(), dataclasses.replace(DEVICE, network=slow, cores=2), asked)[0]
    assert device.reduce_seconds == cpu.reduce_seconds == pytest.approx(0.08)
    assert cpu.update_seconds - device.update_seconds == pytest.approx(0.08)


def test_micro_batches_divide_the_global_batch() -> None:
    assert sizes(48) == [1, 2, 4, 8, 16]
    assert sizes(48, smallest=4) == [4, 8, 16]
    assert sizes(7) == [1]
