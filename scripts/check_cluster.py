"""Compare the cluster simulator with runs on 1, 2 and 4 workers of this machine, in CPU seconds per update.

CPU time and not the clock on the wall, as the machine may be shared: a worker has one thread, so on a core of its own an
update would take what it computes. The units are measured in CPU seconds just before each run, as `conveyor plan --measure`
does: with one thread, while as many other processes as the run will have are busy, for they share caches, memory and clock.
The run's main worker says its CPU seconds at every log point (a callback). The error is the median of the rounds' own: each
compares a forecast with the run right after it, so that a machine whose speed changes from minute to minute does not count
as an error of the forecast.

    python scripts/check_cluster.py [ROUNDS]
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKERS = (1, 2, 4)
UPDATES, PER_LOG = 44, 4
MICRO_BATCH, ACCUMULATION = 16, 4
MODEL = {"model": "cifar_resnet20", "image_size": 32, "num_classes": 10, "in_channels": 3}


class Clock:
    """The callback: CPU seconds of the process, a line for each log point."""

    def on_log(self, record: dict[str, float]) -> None:
        with open(os.environ["CHECK_CLUSTER"], "a") as file:
            file.write(f"{record['update']} {time.process_time()}\n")


def measured(workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        options = {
            **MODEL, "data": "cifar10", "micro_batch_size": MICRO_BATCH, "accumulation": ACCUMULATION, "replicas": workers,
            "layout": f"{workers}x1", "threads": 1, "updates": UPDATES, "updates_per_log": PER_LOG, "checkpoints_per_epoch": 0,
            "run_dir": f"{folder}/run", "callback": f"{__file__}:Clock",
        }  # fmt: skip
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        switches = ["--synthetic-data", "--no-validation", "--no-report", "--no-tensorboard", "--quiet"]
        command = [sys.executable, "-m", "conveyor", "train", *flags, *switches]
        subprocess.run(command, check=True, env={**os.environ, "CHECK_CLUSTER": str(times)}, stdout=subprocess.DEVNULL)
        seconds = [float(line.split()[1]) for line in times.read_text().splitlines()]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(seconds[1:])) / PER_LOG


def predicted(workers: int) -> float:
    from conveyor.data.subject import planned
    from conveyor.options import Options
    from conveyor.plan import planner
    from conveyor.plan.hardware import CPU_LOOPBACK, this_cpu
    from conveyor.plan.simulator import Cluster, forecast

    options = Options().replace(**MODEL, micro_batch_size=MICRO_BATCH, accumulation=ACCUMULATION, device="cpu")
    total = MICRO_BATCH * ACCUMULATION
    model = planner.cost_model(
        options,
        planned(options),
        this_cpu(workers, 1e11),
        measure=True,
        workers=workers,
        batch=MICRO_BATCH,
        kinds=(),
        global_batch=total,
    )
    cluster = Cluster(devices=workers, inner=CPU_LOOPBACK.bandwidth, latency=2 * CPU_LOOPBACK.latency, overlap=0.0)
    stage = model.stage(0, len(model), MICRO_BATCH)
    one = forecast(
        cluster, [stage], replicas=workers, accumulation=ACCUMULATION, micro_batch=MICRO_BATCH, schedule="gpipe",
        update_seconds_per_byte=planner.update_rate(),
    )  # fmt: skip
    return one.update_seconds


def main(rounds: int) -> dict[int, float]:
    """Measures, prints, and returns the error in percent for each number of workers."""
    found: dict[int, list[tuple[float, float]]] = {workers: [] for workers in WORKERS}
    for _ in range(rounds):
        for workers, pairs in found.items():
            pairs.append((predicted(workers), measured(workers)))
            print(workers, *(f"{1e3 * one:.1f}" for one in pairs[-1]), flush=True)
    print("workers  predicted ms  measured ms  error, median and all; how many within 20 %")
    medians = {}
    for workers, pairs in found.items():
        one, other = (statistics.median(side) for side in zip(*pairs, strict=True))
        errors = [100 * (forecast / run - 1) for forecast, run in pairs]
        words = ", ".join(f"{error:+.0f}" for error in errors)
        medians[workers] = statistics.median(errors)
        inside = f"{sum(abs(error) <= 20 for error in errors)} of {rounds}"
        print(f"{workers:>7}  {1e3 * one:>12.1f}  {1e3 * other:>11.1f}  {medians[workers]:+.0f} % ({words}); {inside}")
    return medians


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
