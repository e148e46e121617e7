"""The log lines and CSV columns of the original programs, so that scripts written for their output go on working.

All four print lines that match the patterns of the original benchmark files, and no others that match:
    throughput: *(.*?) samples\\/sec      (followed by a comma in tensorflow1)
    accuracy: *(.*?) \\%
    loss: *(\\d*\\.\\d*)
    latency avg: *(.*?) ms,  latency 99p: ...,  latency 99p9: ...,  latency max: ...
"""

import os

from conveyor.monitor.log_style import LogStyle, Values, columns
from conveyor.monitor.memory import peak_resident
from conveyor.monitor.records import Record

LATENCIES = {"avg": "latency_avg_ms", "99p": "latency_p99_ms", "99p9": "latency_p999_ms", "max": "latency_max_ms"}


class DialectStyle(LogStyle):
    """Adds to the values of a record what more than one of the programs shows."""

    def values(self, record: Record) -> Values:
        found = super().values(record)
        for name in ("loss", "accuracy"):
            found.setdefault(f"{name}_batch", found[name])
        latencies = (f"latency {name}: {found[key]:.3f} ms" for name, key in LATENCIES.items() if key in found)
        found["latencies"] = ", ".join(latencies)
        return found


class TensorFlow1(DialectStyle):
    log_lines = (
        "step: {step:6d}, iteration: {update:6d}, epoch: {epoch:6.2f}, lr: {lr:6.4g}, loss: {loss:6.3f}, "
        "top-1 accuracy: {accuracy:6.3f} %, throughput: {images_per_second:6.2f} samples/sec, "
        "time: {update_seconds:8.6f} s/it, total_time: {seconds:8.1f} s"
    )
    validation_lines = (
        "{name} iteration: {update:6d}, epoch: {epoch:6.2f}, throughput: {images_per_second:6.2f} samples/sec, "
        "time: {seconds:8.6f} s, {optional}top-1 accuracy: {accuracy:6.3f} %"
    )
    training_columns = columns(
        "step iteration=update epoch lr loss_batch loss_avg=loss train_acc_batch=accuracy_batch "
        "train_acc_avg=accuracy it_time=update_seconds img_per_sec=images_per_second total_time=seconds"
    )
    validation_columns = columns(
        "name iteration=update epoch val_acc=accuracy val_time=seconds val_size=images "
        "img_per_sec=images_per_second latency=latency_avg_ms"
    )

    def values(self, record: Record) -> Values:
        found = super().values(record)
        loss = f"loss: {found['loss']:.4f}" if "loss" in record else ""
        found["optional"] = "".join(f"{part}, " for part in (found["latencies"], loss) if part)
        return found


class TensorFlow2(DialectStyle):
    """Its accuracies are fractions although a percent sign follows them; scripts that read its output rely on that."""

    log_lines = (
        "batch {update}: [throughput: {images_per_second:.2f} samples/sec, epoch: {epoch:.2f}, "
        "%CPU_memory: {memory:.2f}, lr: {lr:.6g}, loss: {loss:.4f}, training_accuracy: {fraction:.4f} %{scale}]"
    )
    validation_lines = (
        "validation of epoch {epoch:.2f}: [validation_accuracy: {fraction:.4f} %, "
        "validation_throughput: {images_per_second:.2f} img/sec]"
    )
    end_lines = "time to train: {seconds:.2f} s"
    training_columns = columns(
        "batch=update throughput=images_per_second epoch %CPU_memory=memory lr loss training_accuracy=fraction "
        "loss_scaling_factor=loss_scale? iteration=update"
    )
    validation_columns = columns("name iteration=update epoch validation_accuracy=fraction")

    def values(self, record: Record) -> Values:
        found = super().values(record)
        scale = f", loss_scaling_factor: {found['loss_scale']}" if "loss_scale" in record else ""
        found.update(fraction=found["accuracy"] / 100, memory=memory_percent(), scale=scale)
        return found


class PyTorch(DialectStyle):
    log_lines = (
        "Epoch {epoch:.2f}, iteration {update}, learning rate {lr:.6g}\n"
        "loss: {loss:.4f}\n"
        "accuracy: {accuracy:.2f} %\n"
        "throughput: {images_per_second:.2f} samples/sec"
    )
    validation_lines = "Validation of epoch {epoch:.2f}\naccuracy: {accuracy:.2f} %\n{latencies}"
    training_columns = columns(
        "loss_avg=loss loss_batch epoch iteration=update train_accuracy_avg=accuracy "
        "train_accuracy_batch=accuracy_batch learning_rate=lr train_img_per_sec=images_per_second "
        "validation_accuracy=last_validation? classification_loss_avg=classification_loss "
        "classification_loss_batch smoothing_loss_avg=smoothing_loss smoothing_loss_batch loss_scaling=loss_scale"
    )
    validation_columns = columns("validation_epoch=epoch validation_iteration=update validation_accuracy=accuracy")

    def values(self, record: Record) -> Values:
        found = super().values(record)
        found.setdefault("classification_loss", found["loss"])
        found.setdefault("classification_loss_batch", found["loss_batch"])
        found.setdefault("loss_scale", 1.0)
        return found


class PopArt(DialectStyle):
    log_lines = (
        "Training: step: {step}, epoch: {epoch:.2f}, lr: {lr:.6g}, loss: {loss:.4f}, accuracy: {accuracy:.2f} %, "
        "img/sec: {images_per_second:.2f}, throughput: {images_per_second:.2f} samples/sec, "
        "step time: {step_seconds:.4f} s, device time: {device_seconds:.4f} s"
    )
    validation_lines = (
        "Validation: epoch: {epoch:.2f}, img/sec: {images_per_second:.2f}, accuracy: {accuracy:.2f} %, loss: {loss:.4f}"
    )
    training_columns = columns(
        "step iteration=update epoch lr loss accuracy img_per_sec=images_per_second step_time=step_seconds "
        "device_time=device_seconds"
    )
    validation_columns = columns("name iteration=update epoch img_per_sec=images_per_second accuracy loss")

    def values(self, record: Record) -> Values:
        found = super().values(record)
        seconds = found["update_seconds"] * self.updates_per_call
        found.update(step_seconds=seconds, device_seconds=seconds * (1 - found["data_wait"]))
        return found


def memory_percent() -> float:
    """Peak resident memory of this process as a share of the machine's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 100.0 * peak_resident() / total
