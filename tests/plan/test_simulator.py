"""Forecasts for clusters: exact where they can be, plausible where chance plays, quick for thousands of devices."""

import dataclasses

import pytest

from conveyor.errors import UserError
from conveyor.plan.costs import StageCost
from conveyor.plan.simulator import Cluster, Forecast, finish, forecast, scaling


def stages(depth: int, weight_bytes: float = 1e6) -> list[StageCost]:
    return [
        StageCost(s, s + 1, 0.010, 0.020, weight_bytes, 1e6, 1e5 if s < depth - 1 else 0.0, 1e5) for s in range(depth)
    ]


CASE = {"micro_batch": 16, "schedule": "1f1b"}
FAST = Cluster(hosts=64, devices=64, link=1e15, inner=1e15, latency=0.0)


@pytest.mark.parametrize(("depth", "accumulation"), [(1, 4), (4, 16), (4, 300)])
def test_without_noise_and_delay_it_is_the_timetable(depth: int, accumulation: int) -> None:
    one = forecast(FAST, stages(depth), replicas=8, accumulation=accumulation, update_seconds_per_byte=0.0, **CASE)
    assert one.update_seconds == pytest.approx(0.03 * (accumulation + depth - 1), rel=1e-6)
    assert one.bubble == pytest.approx((depth - 1) / (accumulation + depth - 1), abs=1e-6)
    assert one.efficiency == pytest.approx(accumulation / (accumulation + depth - 1), rel=1e-6)
    assert one.reduce_seconds == pytest.approx(0.0, abs=1e-6)


def test_stragglers_cost_more_the_more_replicas_wait() -> None:
    noisy = Cluster(hosts=64, devices=64, link=1e15, inner=1e15, latency=0.0, straggler=0.1)
    few, many = (forecast(noisy, stages(1), replicas=count, accumulation=4, **CASE).efficiency for count in (4, 1024))
    assert 1.0 > few > many > 0.6


def test_one_slow_device_paces_the_cluster() -> None:
    cluster = Cluster(hosts=4, devices=16, link=1e15, inner=1e15, latency=0.0, slow=1, slow_factor=2.0)
    one = forecast(cluster, stages(1), replicas=64, accumulation=4, update_seconds_per_byte=0.0, **CASE)
    assert one.update_seconds == pytest.approx(0.03 * 4 * 2)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical", "sharded", "auto"])
def test_a_slow_network_shows_and_overlap_hides_it(algorithm: str) -> None:
    open_, hidden = (
        forecast(Cluster(hosts=4, devices=4, link=1e9, reduce=algorithm, overlap=share), stages(1, 2e7), replicas=16, accumulation=1, **CASE)
        for share in (0.0, 1.0)
    )  # fmt: skip
    assert open_.reduce_seconds > 0.02
    assert open_.reduce_seconds - hidden.reduce_seconds == pytest.approx(0.02, rel=0.05)


def test_thousands_of_devices() -> None:
    cluster = Cluster(hosts=256, devices=16, straggler=0.05, reduce="ring")
    one = forecast(cluster, stages(4), replicas=1024, accumulation=32, **CASE)
    assert one.devices == 4096
    assert 0.3 < one.efficiency < 1.0


def test_scaling_keeps_the_global_batch_and_loses_efficiency() -> None:
    curve = scaling(
        Cluster(straggler=0.02), stages(4), [16, 64, 128], micro_batch=16, global_batch=16384, schedule="gpipe"
    )
    assert [(one.devices, one.replicas, one.accumulation) for one in curve] == [
        (16, 4, 256),
        (64, 16, 64),
        (128, 32, 32),
    ]
    assert {one.global_batch for one in curve} == {16384}
    rates = [one.images_per_second for one in curve]
    assert rates == sorted(rates)
    assert curve[0].efficiency > curve[1].efficiency > curve[2].efficiency


def test_failures_lengthen_the_run() -> None:
    cluster = Cluster(mtbf=200 * 3600.0, save=30, restart=120)
    end = finish(cluster, devices=128, work=8 * 3600.0)
    assert end.failures > 2
    assert end.mean == pytest.approx(end.expected, rel=0.05)
    assert end.work < end.low < end.mean < end.high
    assert finish(Cluster(), devices=128, work=100.0).failures == 0


def test_a_failure_costs_one_update_where_the_workers_hand_over() -> None:
    cluster = Cluster(mtbf=200 * 3600.0, save=30, restart=120)
    ends = [
        finish(dataclasses.replace(cluster, recovery=recovery), devices=1024, work=8 * 3600.0, update=0.5)
        for recovery in ("update", "checkpoint")
    ]
    assert ends[0].mean == pytest.approx(ends[0].expected, rel=0.05)
    assert ends[0].interval == ends[1].interval
    # Per failure, half an interval of work and a checkpoint less is lost, and half an update more.
    saved = ends[1].mean - ends[0].mean
    assert saved > 0.4 * ends[0].failures * ends[0].interval


def test_devices_wait_for_the_storage() -> None:
    def one(storage: float) -> Forecast:
        cluster = dataclasses.replace(FAST, storage=storage, image=100e3)
        return forecast(cluster, stages(1), replicas=8, accumulation=4, update_seconds_per_byte=0.0, **CASE)

    images = 16 * 4 * 8
    assert one(1e15).update_seconds == pytest.approx(0.12)
    assert one(1e8).update_seconds == pytest.approx(images * 100e3 / 1e8)
    assert one(1e8).images_per_second == pytest.approx(1000)


def test_lanes_that_are_no_subtrees_send_more() -> None:
    cluster = Cluster(hosts=1, devices=16, inner=1e9, overlap=0.0, reduce="sharded")
    even, odd = (
        forecast(cluster, stages(1, 1e8), replicas=replicas, accumulation=2, **CASE).reduce_seconds
        for replicas in (8, 6)
    )
    assert odd > 1.2 * even


def test_too_few_devices() -> None:
    with pytest.raises(UserError, match="need 32 devices, but the cluster has 16"):
        forecast(Cluster(), stages(4), replicas=8, accumulation=4, **CASE)


def test_reading_a_cluster() -> None:
    cluster = Cluster.parse(
        [
            "hosts=8",
            "devices=16",
            "link=100Gbit",
            "latency=2us",
            "tflops=31",
            "mtbf=4000h",
            "memory=900MiB",
            "reduce=tree",
        ]
    )
    assert (cluster.hosts, cluster.total, cluster.link, cluster.latency) == (8, 128, 12.5e9, pytest.approx(2e-6))
    assert (cluster.flops, cluster.mtbf, cluster.memory, cluster.reduce) == (31e12, 4000 * 3600, 900 * 2**20, "tree")


@pytest.mark.parametrize(
    ("word", "answer"),
    [("host=8", "did you mean 'hosts'"), ("hosts", "not key=value"), ("hosts=many", "not a number for hosts"), ("hosts=0", "at least 1"),
     ("reduce=star", "there is no all-reduce 'star'"), ("mtbf=0", "mtbf must be above 0"), ("save=0", "save must be above 0"),
     ("link=0Gbit", "link must be above 0"), ("tflops=0", "tflops must be above 0"), ("tflops=nan", "tflops must be above 0"),
     ("straggler=-1", "straggler must not be below 0"), ("straggler=inf", "straggler.* must be at most 5"),
     ("seed=-1", "seed must not be below 0"), ("storage=0GB/s", "storage must be above 0"),
     ("recovery=none", "there is no recovery 'none': update, checkpoint")],
)  # fmt: skip
def test_mistakes_are_named(word: str, answer: str) -> None:
    with pytest.raises(UserError, match=answer):
        Cluster.parse([word])


def test_a_cluster_that_fails_before_it_has_restarted_is_refused() -> None:
    for mtbf in (1e-6, 1.0, 20.0):
        with pytest.raises(UserError, match="would hardly end"):
            finish(Cluster(mtbf=mtbf), 4, 3600.0)
    assert finish(Cluster(mtbf=3600.0), 4, 3600.0, runs=5).failures > 0
