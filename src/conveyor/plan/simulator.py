"""Simulation of a cluster: the updates of a run on it, pass by pass and message by message.

Every update, each device's passes are stretched by a random factor (stragglers); all replicas run their timetables; the
replicas of each stage then reduce their gradients, by default as a run of this program does; the ring step by step, so
that a late replica delays those that wait for it. Images are read from shared storage meanwhile: an update takes no less
than its images. Failures and checkpoints of the whole run are simulated on top (see `failures`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conveyor.errors import UserError, did_you_mean
from conveyor.layout import deal
from conveyor.options.units import many, size_in_bytes
from conveyor.options.units import seconds as parse_seconds
from conveyor.plan import failures
from conveyor.plan.costs import StageCost
from conveyor.plan.hardware import Hardware
from conveyor.plan.network import ALGORITHMS, Link, Network, parse_bandwidth, ring_by_steps
from conveyor.plan.timetable import simulate

_Array = npt.NDArray[np.float64]
MAX_SLOTS = 64
RING_CELLS = 4_000_000
ABOVE_ZERO = ("flops", "memory_bandwidth", "link", "inner", "mtbf", "save", "slow_factor", "storage", "image")
NOT_BELOW_ZERO = ("latency", "overhead", "straggler", "slow", "restart", "overlap", "seed")
RECOVERIES = ("update", "checkpoint")
MOST_FAILURES = 100_000
"""More of them in one run are not worth simulating."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster: what `--simulate key=value ...` can say. Times in seconds, sizes in bytes, rates per second."""

    hosts: int = 1
    devices: int = 16
    link: float = 12.5e9
    inner: float = 64e9
    latency: float = 5e-6
    flops: float = 50e12
    memory_bandwidth: float = 1e12
    memory: float = 16 * 2**30
    overhead: float = 5e-6
    straggler: float = 0.0
    slow: int = 0
    slow_factor: float = 1.5
    overlap: float = 0.9
    reduce: str = "sharded"
    storage: float = float("inf")
    """Bytes per second that all hosts together read."""
    image: float = 110e3
    """Bytes of a stored image; those of ImageNet by default."""
    mtbf: float = float("inf")
    save: float = 30.0
    restart: float = 120.0
    interval: float | None = None
    recovery: str = "update"
    """What a failure costs besides `restart`: the update in work, or all work since the last checkpoint."""
    seed: int = 0

    @property
    def total(self) -> int:
        return self.hosts * self.devices

    @property
    def network(self) -> Network:
        return Network(Link(self.inner, self.latency / 2), Link(self.link, self.latency), self.devices)

    def hardware(self) -> Hardware:
        """The device as the cost model sees it."""
        return Hardware(
            flops=self.flops, bandwidth=self.memory_bandwidth, network=self.network, memory=self.memory,
            overhead=self.overhead,
        )  # fmt: skip

    @classmethod
    def parse(cls, words: Sequence[str]) -> "Cluster":
        """`hosts=8 devices=16 link=100Gbit straggler=0.05 mtbf=4000h save=20s ...`."""
        readers = {
            "hosts": int, "devices": int, "slow": int, "seed": int, "straggler": float, "slow_factor": float, "overlap": float,
            "link": parse_bandwidth, "inner": parse_bandwidth, "memory_bandwidth": parse_bandwidth, "memory": size_in_bytes,
            "storage": parse_bandwidth, "image": size_in_bytes, "recovery": _one_of("recovery", RECOVERIES),
            "tflops": lambda text: float(text) * 1e12, "flops": float, "latency": _short_time, "overhead": _short_time,
            "mtbf": parse_seconds, "save": parse_seconds, "restart": parse_seconds, "interval": parse_seconds,
            "reduce": _one_of("all-reduce", ALGORITHMS),
        }  # fmt: skip
        values: dict[str, object] = {}
        for word in words:
            key, equals, text = word.partition("=")
            name = key.replace("-", "_")
            if not equals or name not in readers:
                raise UserError(f"--simulate: {word!r} is not key=value with a known key{did_you_mean(name, readers)}")
            try:
                values["flops" if name == "tflops" else name] = readers[name](text)  # type: ignore[operator]
            except ValueError:
                raise UserError(f"--simulate: {text!r} is not a number for {key}") from None
        cluster = cls(**values)  # type: ignore[arg-type]
        if cluster.hosts < 1 or cluster.devices < 1:
            raise UserError("--simulate: hosts and devices must be at least 1")
        for name in ABOVE_ZERO:
            if not getattr(cluster, name) > 0:
                raise UserError(f"--simulate: {'tflops' if name == 'flops' else name} must be above 0")
        for name in NOT_BELOW_ZERO:
            if not getattr(cluster, name) >= 0:
                raise UserError(f"--simulate: {name} must not be below 0")
        if cluster.straggler > 5:
            raise UserError("--simulate: straggler, a deviation of logarithms, must be at most 5")
        return cluster


def _one_of(what: str, choices: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise UserError(f"--simulate: there is no {what} {text!r}: {', '.join(choices)}")
        return text

    return read


def _short_time(text: str) -> float:
    """`5us`, `0.2ms`, or seconds."""
    for ending, factor in (("us", 1e-6), ("ms", 1e-3)):
        if text.endswith(ending):
            return float(text[: -len(ending)]) * factor
    return parse_seconds(text)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the simulation says about one configuration."""

    devices: int
    replicas: int
    stages: int
    accumulation: int
    global_batch: int
    update_seconds: float
    update_spread: float
    compute_seconds: float
    reduce_seconds: float
    data_seconds: float
    """What reading the images of an update takes; it runs beside the rest."""
    bubble: float
    images_per_second: float
    efficiency: float


def forecast(
    cluster: Cluster, stages: Sequence[StageCost], *, replicas: int, accumulation: int, micro_batch: int, schedule: str,
    updates: int = 16, update_seconds_per_byte: float = 2e-12,
) -> Forecast:  # fmt: skip
    """Simulate `updates` updates of `replicas` pipelines of these stages."""
    depth = len(stages)
    if replicas * depth > cluster.total:
        raise UserError(
            f"{many(replicas, 'replica')} x {many(depth, 'stage')} need {replicas * depth} devices, but the cluster has {cluster.total}"
        )
    rng = np.random.default_rng(cluster.seed)
    stretch = _stretch(cluster, rng, updates, depth, replicas)
    slots = min(accumulation, MAX_SLOTS)
    link = Link(cluster.inner, cluster.latency / 2) if depth <= cluster.devices else Link(cluster.link, cluster.latency)
    sending = [link.seconds(stage.output_bytes) for stage in stages[:-1]]
    order = schedule if depth > 1 else "sequential"

    def ends(count: int) -> tuple[_Array, float]:
        table = simulate(
            order, [stage.forward * stretch[s] for s, stage in enumerate(stages)],
            [stage.backward * stretch[s] for s, stage in enumerate(stages)], count, sending,
        )  # fmt: skip
        return table.stage_ends(), table.bubble()

    stage_ends, bubble = ends(slots)
    if accumulation > slots:
        half, _ = ends(slots // 2)
        stage_ends = stage_ends + (accumulation - slots) * (stage_ends - half) / (slots - slots // 2)
        busy = sum(stage.seconds for stage in stages) * accumulation
        bubble = max(0.0, 1 - busy * float(np.mean(stretch)) / (depth * float(np.mean(stage_ends.max(axis=0)))))
    ready = stage_ends.reshape(depth, updates, replicas)
    shared = cluster.network.shared(depth)
    parts = _parts(replicas * accumulation, replicas)
    finished = np.stack([
        _reduced(cluster, shared, stage, ready[s], stretch[s].reshape(updates, replicas), parts) for s, stage in enumerate(stages)
    ])  # fmt: skip
    computed = ready.max(axis=(0, 2))
    optimiser = max(stage.weight_bytes for stage in stages) * update_seconds_per_byte
    global_batch = micro_batch * accumulation * replicas
    reading = global_batch * cluster.image / cluster.storage
    per_update = np.maximum(finished.max(axis=0) + optimiser, reading)
    mean = float(per_update.mean())
    ideal = micro_batch / sum(stage.seconds for stage in stages)
    rate = global_batch / mean
    return Forecast(
        devices=replicas * depth,
        replicas=replicas,
        stages=depth,
        accumulation=accumulation,
        global_batch=global_batch,
        update_seconds=mean,
        update_spread=float(per_update.std()),
        compute_seconds=float(computed.mean()),
        reduce_seconds=float((finished.max(axis=0) - computed).mean()),
        data_seconds=reading,
        bubble=bubble,
        images_per_second=rate,
        efficiency=rate / (ideal * replicas * depth),
    )


def _stretch(cluster: Cluster, rng: np.random.Generator, updates: int, depth: int, replicas: int) -> _Array:
    """`[stage, update * replica]`: how much longer each device's passes take in each update.

    Lognormal with median 1 and sigma `straggler`, new in every update; `slow` devices are slower all the time.
    """
    factors: _Array = np.exp(cluster.straggler * rng.standard_normal((depth, updates, replicas)))
    if cluster.slow:
        chosen = rng.choice(depth * replicas, size=min(cluster.slow, depth * replicas), replace=False)
        for device in chosen:
            factors[device // replicas, :, device % replicas] *= cluster.slow_factor
    flat: _Array = factors.reshape(depth, updates * replicas)
    return flat


def _parts(slots: int, lanes: int) -> int:
    """Most nodes of the tree that one lane's slots are made of: 1 when they are whole subtrees."""
    if slots & (slots - 1) == 0 and lanes & (lanes - 1) == 0:
        return 1
    return max(len(parts) for parts in deal(slots, 1, lanes).parts())


def _reduced(
    cluster: Cluster, network: Network, stage: StageCost, ready: _Array, stretch: _Array, parts: int
) -> _Array:
    """When all replicas of a stage have the reduced gradients, for each update."""
    updates, replicas = ready.shape
    last: _Array = ready.max(axis=1)
    if replicas == 1:
        return last
    # The exchange of the first buckets runs while the last backward pass computes the others.
    early = ready - cluster.overlap * stage.backward * stretch
    chosen = network.fastest(stage.weight_bytes, replicas) if cluster.reduce == "auto" else cluster.reduce
    if chosen == "ring":
        link = network.inner if replicas <= network.devices_per_host else network.outer
        shown = max(1, min(updates, RING_CELLS // (2 * replicas * replicas) or 1))
        ends = ring_by_steps(early[:shown], stage.weight_bytes, link.latency, link.bandwidth).max(axis=1)
        tail = np.mean(ends - early[:shown].max(axis=1))
        done: _Array = np.concatenate([ends, early[shown:].max(axis=1) + tail])
    else:
        done = early.max(axis=1) + network.reduce_seconds(stage.weight_bytes, replicas, chosen, parts)
    ends_at: _Array = np.maximum(last, done)
    return ends_at


@dataclass(frozen=True, slots=True)
class Finish:
    """How long the whole run takes with failures and checkpoints."""

    work: float
    interval: float
    expected: float
    mean: float
    low: float
    high: float
    failures: float
    goodput: float


def finish(cluster: Cluster, devices: int, work: float, update: float = 1.0, runs: int = 200) -> Finish:
    """The time to finish `work` seconds of training when each device fails every `cluster.mtbf` seconds on average.

    With `recovery=update` the workers that are left hand over their state, so that a failure loses at most the `update`
    seconds of the update in work; checkpoints are saved all the same, for the case that no worker is left.
    """
    job = failures.Reliability(cluster.mtbf / devices, cluster.save, cluster.restart)
    endless = job.mtbf == float("inf")
    interval = cluster.interval or (work if endless else min(work, failures.daly_interval(job)))
    done, lost = work, interval
    if cluster.recovery == "update":
        done, lost, job = work * (1 + cluster.save / interval), update, dataclasses.replace(job, save=0.0)
    expected = failures.expected_time(job, done, lost)
    if expected / job.mtbf > MOST_FAILURES:
        raise UserError(
            f"--simulate: {devices} devices fail every {job.mtbf:.3g} s, and {lost:.3g} s of work with a checkpoint and a "
            f"restart take {lost + job.save + job.restart:.3g} s: the run would hardly end; raise mtbf"
        )
    outcomes = failures.simulate_runs(job, done, lost, runs, cluster.seed)
    totals = np.array([outcome.total for outcome in outcomes])
    return Finish(
        work=work,
        interval=interval,
        expected=expected,
        mean=float(totals.mean()),
        low=float(np.quantile(totals, 0.05)),
        high=float(np.quantile(totals, 0.95)),
        failures=float(np.mean([outcome.failures for outcome in outcomes])),
        goodput=float(np.mean(work / totals)),
    )


def scaling(
    cluster: Cluster, stages: Sequence[StageCost], counts: Sequence[int], *, micro_batch: int, global_batch: int, schedule: str,
) -> list[Forecast]:  # fmt: skip
    """The same global batch on more and more devices: replicas grow, accumulation shrinks."""
    found = []
    for count in counts:
        replicas = max(1, count // len(stages))
        accumulation = max(1, round(global_batch / (micro_batch * replicas)))
        hosts = max(cluster.hosts, -(-count // cluster.devices))
        larger = dataclasses.replace(cluster, hosts=hosts)
        found.append(
            forecast(
                larger, stages, replicas=replicas, accumulation=accumulation, micro_batch=micro_batch, schedule=schedule
            )
        )
    return found
