"""The keys of a log record: the same for the terminal, the CSV files and every tracker.

A record is a plain `dict[str, float | int | str]`. Keys that do not apply are left out (never None).

`log` records (a log point of training; all values are means over accumulation, replicas and workers):
    update              int, weight updates done
    epoch               float, epochs done
    lr                  learning rate of the last update
    loss                mean since the last log point (with label smoothing, without an L2 term)
    loss_batch          of the last update alone
    accuracy            percent, mean since the last log point
    accuracy_batch      percent, of the last update alone
    images_per_second   since the last log point, events excluded
    peak_share          that throughput's share (0..1) of the machine's measured float32 GEMM rate
    update_seconds      mean time of one update since the last log point
    weights             digest of the weights and norm statistics: equal for equal bits (`conveyor compare`)
    seconds             since the start of training, over all resumed parts
    loss_scale          when loss scaling is on
    skipped_updates     updates skipped so far because of a non-finite gradient
    gradient_norm       when it is measured
    memory_mib          peak resident (CPU) or allocated (CUDA) memory of the largest worker
    data_wait           share (0..1) of the time spent waiting for data since the last log point

`validation` records:
    name, update, epoch, accuracy (top-1 percent), accuracy_top5 (percent), loss, images, seconds, images_per_second,
    precision, recall, f1 (percent, means over the classes), ece (expected calibration error, percent),
    of multi-label models map (mean average precision, percent) and f1_micro (percent); accuracy is then the share of the
    images whose surest class is one of theirs, or which have none and no class has half a probability,
    and with latencies: latency_avg_ms, latency_p50_ms, latency_p99_ms, latency_p999_ms, latency_max_ms

`end` records:
    updates, epochs, seconds, images_per_second (mean without the first log point), accuracy (last validation),
    best_accuracy, best_update, reason (a value of `training.stopping.Reason`)
"""

from collections.abc import Mapping

Value = float | int | str
Record = Mapping[str, Value]

TRAINING_COLUMNS = (
    "update",
    "epoch",
    "lr",
    "loss",
    "loss_batch",
    "accuracy",
    "accuracy_batch",
    "weights",
    "images_per_second",
    "update_seconds",
    "seconds",
)
VALIDATION_COLUMNS = (
    "name",
    "update",
    "epoch",
    "accuracy",
    "accuracy_top5",
    "loss",
    "precision",
    "recall",
    "f1",
    "ece",
    "images",
    "seconds",
    "images_per_second",
)


def score(record: Record, metric: str) -> float:
    """A figure of a validation as something of which more is better; with five classes or fewer top-5 is always 100."""
    value = number(record, metric, 100.0)
    return -value if metric in ("loss", "ece") else value


def number(record: Record, key: str, default: float = 0.0) -> float:
    """`record[key]` as a float; `default` when the key is absent or is text."""
    value = record.get(key, default)
    return float(value) if isinstance(value, int | float) else default


def readable_time(seconds: float) -> str:
    """`8s`, `3min 20s`, `1h 05min`, `2d 03h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}min {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}min"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def readable_rate(rate: float) -> str:
    """Three or four significant figures: `0.85`, `24.5`, `446`, `12 300`."""
    if rate < 10:
        return f"{rate:.2f}"
    if rate < 100:
        return f"{rate:.1f}"
    return f"{rate:,.0f}".replace(",", " ")
