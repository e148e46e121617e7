"""The log lines and CSV columns of the original programs, so that scripts written for their output go on working.

All four print lines that match the patterns of the original benchmark files, and no others that match:
    throughput: *(.*?) samples\\/sec      (followed by a comma in tensorflow1)
    accuracy: *(.*?) \\%
    loss: *(\\d*\\.\\d*)
    latency avg: *(.*?) ms,  latency 99p: ...,  latency 99p9: ...,  latency max: ...
"""

import os

from conveyor.monitor.log_style import LogStyle
from conveyor.monitor.memory import peak_resident
from conveyor.monitor.records import Record, number


class TensorFlow1(LogStyle):
    training_columns = (
        "step",
        "iteration",
        "epoch",
        "lr",
        "loss_batch",
        "loss_avg",
        "train_acc_batch",
        "train_acc_avg",
        "it_time",
        "img_per_sec",
        "total_time",
    )
    validation_columns = ("name", "iteration", "epoch", "val_acc", "val_time", "val_size", "img_per_sec", "latency")

    def log(self, record: Record) -> list[str]:
        return [
            (
                f"step: {self.step(record):6d}, iteration: {int(number(record, 'update')):6d}, epoch: {number(record, 'epoch'):6.2f}, "
                f"lr: {number(record, 'lr'):6.4g}, loss: {number(record, 'loss'):6.3f}, top-1 accuracy: {number(record, 'accuracy'):6.3f} %, "
                f"throughput: {number(record, 'images_per_second'):6.2f} samples/sec, time: {number(record, 'update_seconds'):8.6f} s/it, "
                f"total_time: {number(record, 'seconds'):8.1f} s"
            )
        ]

    def validation(self, record: Record) -> list[str]:
        loss = f"loss: {number(record, 'loss'):.4f}, " if "loss" in record else ""
        return [
            (
                f"{record.get('name', '')} iteration: {int(number(record, 'update')):6d}, epoch: {number(record, 'epoch'):6.2f}, "
                f"throughput: {number(record, 'images_per_second'):6.2f} samples/sec, time: {number(record, 'seconds'):8.6f} s, "
                f"{_latencies(record)}{loss}top-1 accuracy: {number(record, 'accuracy'):6.3f} %"
            )
        ]

    def training_row(self, record: Record) -> Record:
        return {
            "step": self.step(record),
            "iteration": int(number(record, "update")),
            "epoch": number(record, "epoch"),
            "lr": number(record, "lr"),
            "loss_batch": number(record, "loss_batch", number(record, "loss")),
            "loss_avg": number(record, "loss"),
            "train_acc_batch": number(record, "accuracy_batch", number(record, "accuracy")),
            "train_acc_avg": number(record, "accuracy"),
            "it_time": number(record, "update_seconds"),
            "img_per_sec": number(record, "images_per_second"),
            "total_time": number(record, "seconds"),
        }

    def validation_row(self, record: Record) -> Record:
        return {
            "name": record.get("name", ""),
            "iteration": int(number(record, "update")),
            "epoch": number(record, "epoch"),
            "val_acc": number(record, "accuracy"),
            "val_time": number(record, "seconds"),
            "val_size": int(number(record, "images")),
            "img_per_sec": number(record, "images_per_second"),
            "latency": number(record, "latency_avg_ms"),
        }


class TensorFlow2(LogStyle):
    """Its accuracies are fractions although a percent sign follows them; scripts that read its output rely on that."""

    training_columns = (
        "batch",
        "throughput",
        "epoch",
        "%CPU_memory",
        "lr",
        "loss",
        "training_accuracy",
        "loss_scaling_factor",
        "iteration",
    )
    validation_columns = ("name", "iteration", "epoch", "validation_accuracy")

    def log(self, record: Record) -> list[str]:
        row = self.training_row(record)
        scale = f", loss_scaling_factor: {row['loss_scaling_factor']}" if "loss_scaling_factor" in row else ""
        return [
            (
                f"batch {row['batch']}: [throughput: {number(row, 'throughput'):.2f} samples/sec, epoch: {number(row, 'epoch'):.2f}, "
                f"%CPU_memory: {number(row, '%CPU_memory'):.2f}, lr: {number(row, 'lr'):.6g}, loss: {number(row, 'loss'):.4f}, "
                f"training_accuracy: {number(row, 'training_accuracy'):.4f} %{scale}]"
            )
        ]

    def validation(self, record: Record) -> list[str]:
        self.last_validation = number(record, "accuracy") / 100
        return [
            (
                f"validation of epoch {number(record, 'epoch'):.2f}: [validation_accuracy: {self.last_validation:.4f} %, "
                f"validation_throughput: {number(record, 'images_per_second'):.2f} img/sec]"
            )
        ]

    def end(self, record: Record) -> list[str]:
        return [f"time to train: {number(record, 'seconds'):.2f} s"]

    def training_row(self, record: Record) -> Record:
        scale = {"loss_scaling_factor": number(record, "loss_scale")} if "loss_scale" in record else {}
        return {
            "batch": int(number(record, "update")),
            "throughput": number(record, "images_per_second"),
            "epoch": number(record, "epoch"),
            "%CPU_memory": _memory_percent(),
            "lr": number(record, "lr"),
            "loss": number(record, "loss"),
            "training_accuracy": number(record, "accuracy") / 100,
            "iteration": int(number(record, "update")),
            **scale,
        }

    def validation_row(self, record: Record) -> Record:
        return {
            "name": record.get("name", ""),
            "iteration": int(number(record, "update")),
            "epoch": number(record, "epoch"),
            "validation_accuracy": number(record, "accuracy") / 100,
        }


class PyTorch(LogStyle):
    training_columns = (
        "loss_avg",
        "loss_batch",
        "epoch",
        "iteration",
        "train_accuracy_avg",
        "train_accuracy_batch",
        "learning_rate",
        "train_img_per_sec",
        "validation_accuracy",
        "classification_loss_avg",
        "classification_loss_batch",
        "smoothing_loss_avg",
        "smoothing_loss_batch",
        "loss_scaling",
    )
    validation_columns = ("validation_epoch", "validation_iteration", "validation_accuracy")

    def log(self, record: Record) -> list[str]:
        return [
            f"Epoch {number(record, 'epoch'):.2f}, iteration {int(number(record, 'update'))}, learning rate {number(record, 'lr'):.6g}",
            f"loss: {number(record, 'loss'):.4f}",
            f"accuracy: {number(record, 'accuracy'):.2f} %",
            f"throughput: {number(record, 'images_per_second'):.2f} samples/sec",
        ]

    def validation(self, record: Record) -> list[str]:
        self.last_validation = number(record, "accuracy")
        latency = [_latencies(record).rstrip(", ")] if "latency_avg_ms" in record else []
        return [
            f"Validation of epoch {number(record, 'epoch'):.2f}",
            f"accuracy: {number(record, 'accuracy'):.2f} %",
            *latency,
        ]

    def training_row(self, record: Record) -> Record:
        loss, loss_batch = number(record, "loss"), number(record, "loss_batch", number(record, "loss"))
        row: dict[str, float | int | str] = {
            "loss_avg": loss,
            "loss_batch": loss_batch,
            "epoch": number(record, "epoch"),
            "iteration": int(number(record, "update")),
            "train_accuracy_avg": number(record, "accuracy"),
            "train_accuracy_batch": number(record, "accuracy_batch", number(record, "accuracy")),
            "learning_rate": number(record, "lr"),
            "train_img_per_sec": number(record, "images_per_second"),
            "classification_loss_avg": number(record, "classification_loss", loss),
            "classification_loss_batch": number(record, "classification_loss_batch", loss_batch),
            "smoothing_loss_avg": number(record, "smoothing_loss"),
            "smoothing_loss_batch": number(record, "smoothing_loss_batch"),
            "loss_scaling": number(record, "loss_scale", 1.0),
        }
        if self.last_validation is not None:
            row["validation_accuracy"] = self.last_validation
        return row

    def validation_row(self, record: Record) -> Record:
        return {
            "validation_epoch": number(record, "epoch"),
            "validation_iteration": int(number(record, "update")),
            "validation_accuracy": number(record, "accuracy"),
        }


class PopArt(LogStyle):
    training_columns = (
        "step",
        "iteration",
        "epoch",
        "lr",
        "loss",
        "accuracy",
        "img_per_sec",
        "step_time",
        "device_time",
    )
    validation_columns = ("name", "iteration", "epoch", "img_per_sec", "accuracy", "loss")

    def log(self, record: Record) -> list[str]:
        row = self.training_row(record)
        return [
            (
                f"Training: step: {row['step']}, epoch: {number(row, 'epoch'):.2f}, lr: {number(row, 'lr'):.6g}, loss: {number(row, 'loss'):.4f}, "
                f"accuracy: {number(row, 'accuracy'):.2f} %, img/sec: {number(row, 'img_per_sec'):.2f}, "
                f"throughput: {number(row, 'img_per_sec'):.2f} samples/sec, step time: {number(row, 'step_time'):.4f} s, "
                f"device time: {number(row, 'device_time'):.4f} s"
            )
        ]

    def validation(self, record: Record) -> list[str]:
        return [
            (
                f"Validation: epoch: {number(record, 'epoch'):.2f}, img/sec: {number(record, 'images_per_second'):.2f}, "
                f"accuracy: {number(record, 'accuracy'):.2f} %, loss: {number(record, 'loss'):.4f}"
            )
        ]

    def training_row(self, record: Record) -> Record:
        seconds = number(record, "update_seconds") * self.updates_per_call
        return {
            "step": self.step(record),
            "iteration": int(number(record, "update")),
            "epoch": number(record, "epoch"),
            "lr": number(record, "lr"),
            "loss": number(record, "loss"),
            "accuracy": number(record, "accuracy"),
            "img_per_sec": number(record, "images_per_second"),
            "step_time": seconds,
            "device_time": seconds * (1 - number(record, "data_wait")),
        }

    def validation_row(self, record: Record) -> Record:
        return {
            "name": record.get("name", ""),
            "iteration": int(number(record, "update")),
            "epoch": number(record, "epoch"),
            "img_per_sec": number(record, "images_per_second"),
            "accuracy": number(record, "accuracy"),
            "loss": number(record, "loss"),
        }


def _latencies(record: Record) -> str:
    if "latency_avg_ms" not in record:
        return ""
    names = {"avg": "latency_avg_ms", "99p": "latency_p99_ms", "99p9": "latency_p999_ms", "max": "latency_max_ms"}
    return "".join(f"latency {name}: {number(record, key):.3f} ms, " for name, key in names.items() if key in record)


def _memory_percent() -> float:
    """Peak resident memory of this process as a share of the machine's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 100.0 * peak_resident() / total
