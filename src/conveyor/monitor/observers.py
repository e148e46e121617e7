"""The observers of a run. The loop passes the same records (`monitor.records`) to each; none of them changes the run.

observers = make_observers(options, run_dir)          # main worker only; others use an empty list
for observer in observers: observer.start(spec_json, resumed_at)
...                        observer.tick(update)      # after every host call: cheap, moves the bar
...                        observer.log(record)       # at log points
...                        observer.validation(record)
...                        observer.weights(update, histograms)   # after every epoch, with --weight-histograms
...                        observer.end(record)       # also when interrupted
"""

import contextlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from conveyor.errors import UserError
from conveyor.files import write_atomically
from conveyor.monitor import progress
from conveyor.monitor.csvfile import CsvFile
from conveyor.monitor.log_style import LogStyle, log_style
from conveyor.monitor.records import (
    TRAINING_COLUMNS,
    VALIDATION_COLUMNS,
    Record,
    number,
    readable_rate,
    readable_time,
)
from conveyor.options import Options
from conveyor.options.units import many

if TYPE_CHECKING:
    from conveyor.monitor.histograms import Histogram

LOG = "log.txt"
METRICS_FILE_VARIABLE = "CONVEYOR_METRICS_FILE"
"""A run appends its records, one JSON object a line, to the file that this variable names; benchmarks read them."""

_logger = logging.getLogger(__name__)

Spec = dict[str, Any]
"""`RunSpec.to_json()`: at least updates_total, updates_per_epoch, global_batch, epochs."""


def append_log(folder: Path, lines: Sequence[str]) -> None:
    """What was said outside the observers goes into the run's log too."""
    with (folder / LOG).open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write("".join(f"{line}\n" for line in lines))


class Observer:
    """Receives the records of a run; each method does nothing unless overridden."""

    failed = False
    """Whether it was reported that it cannot write."""
    stop = False
    """Whether it asks for the end of the run."""
    unwritten = "what it would have written is lost"
    """What becomes of a record after a failed write."""

    def start(self, spec: Spec, resumed_at: int = 0) -> None:
        """The run begins, or goes on after `resumed_at` updates: records of later updates are invalid."""

    def tick(self, update: int) -> None:
        """`update` updates are done. Called often."""

    def log(self, record: Record) -> None:
        """A log point of training."""

    def validation(self, record: Record) -> None:
        """A validation is done."""

    def checkpoint(self, path: Path) -> None:
        """A checkpoint is complete."""

    def weights(self, update: int, found: "Mapping[str, Histogram]") -> None:
        """Histograms of the weights after `update` updates."""

    def end(self, record: Record) -> None:
        """The run is over."""


def tell(observers: Sequence[Observer], act: Callable[[Observer], None]) -> None:
    """Call `act` on each observer; one that cannot write is reported once: a full disk must not end a long run.

    A closed terminal or pipe (`| head`) does end the run, as with any command.
    """
    for one in observers:
        try:
            act(one)
        except BrokenPipeError:
            raise
        except (OSError, UserError) as problem:
            if not one.failed:
                _logger.error("%s cannot write (%s): training goes on, %s", type(one).__name__, problem, one.unwritten)
            one.failed = True


class Terminal(Observer):
    """A live bar on a terminal and one line per log point; with `quiet` only the result.

    `style` replaces the form of the lines by another program's. Every line also goes to `log_file`. With
    `share` a log line shows the share of the machine's GEMM rate.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        style: LogStyle | None = None,
        log_file: Path | None = None,
        screen: bool = True,
        share: bool = False,
    ) -> None:
        self._share = share
        self._quiet, self._style, self._log_file, self._screen = quiet, style, log_file, screen
        self._bar = progress.Bar()
        self._open_bar = contextlib.ExitStack()
        self._spec: Spec = {}
        self._global_batch = 1

    def start(self, spec: Spec, resumed_at: int = 0) -> None:
        self._spec = spec
        self._global_batch = max(1, int(spec.get("global_batch", 1)))
        total = int(spec.get("updates_total", 0)) * self._global_batch
        shown = progress.track(total or None, "Train", quiet=self._quiet or not self._screen)
        self._bar = self._open_bar.enter_context(shown)
        self._bar.reach(resumed_at * self._global_batch)
        if resumed_at:
            self._write(f"resumed after update {resumed_at}")
        if self._style is not None:
            self._style.begin(spec)

    def tick(self, update: int) -> None:
        epochs = update / max(1, int(self._spec.get("updates_per_epoch", 1)))
        self._bar.reach(update * self._global_batch, note=f"update {update}, epoch {epochs:.2f}")

    def log(self, record: Record) -> None:
        self._write(*([self._log_line(record)] if self._style is None else self._style.log(record)))

    def validation(self, record: Record) -> None:
        self._write(
            *([validation_line(record)] if self._style is None else self._style.validation(record)), result=True
        )

    def end(self, record: Record) -> None:
        self._open_bar.close()
        self._write(*([end_line(record)] if self._style is None else self._style.end(record)), result=True)

    def _log_line(self, record: Record) -> str:
        total = int(self._spec.get("updates_total", 0))
        left = (total - number(record, "update")) * number(record, "update_seconds") if total else 0.0
        shown = record if self._share else {key: value for key, value in record.items() if key != "peak_share"}
        return log_line(shown, total, left)

    def _write(self, *lines: str, result: bool = False) -> None:
        for line in lines:
            if self._screen and (result or not self._quiet):
                progress.say(line, whole=self._style is not None)
        if self._log_file is not None and lines:
            append_log(self._log_file.parent, lines)


def log_line(record: Record, updates_total: int = 0, seconds_left: float = 0.0) -> str:
    """`update 120/390  epoch 1.25  loss 1.2345  acc 54.3 %  446 img/s  12min 05s left`: fits 80 columns as a rule."""
    total = f"/{updates_total}" if updates_total else ""
    parts = [
        f"update {int(number(record, 'update')):{len(total) - 1 if total else 1}d}{total}",
        f"epoch {number(record, 'epoch'):.2f}",
    ]
    forms = {"loss": "loss {:.4f}", "accuracy": "acc {:.1f} %"}
    parts += [form.format(number(record, name)) for name, form in forms.items() if name in record]
    if "images_per_second" in record:
        percent = 100 * number(record, "peak_share")
        share = f" ({percent:.{0 if percent >= 10 else 1}f} % of the GEMM rate)" if "peak_share" in record else ""
        parts.append(f"{readable_rate(number(record, 'images_per_second'))} img/s{share}")
    if "loss_scale" in record:
        parts.append(f"scale {number(record, 'loss_scale'):g}")
    if number(record, "skipped_updates"):
        parts.append(f"{int(number(record, 'skipped_updates'))} skipped")
    if seconds_left > 0:
        parts.append(f"{readable_time(seconds_left)} left")
    return "  ".join(parts)


def validation_line(record: Record) -> str:
    """`validation  update 390  epoch 1.00  acc 61.20 %  top-5 95.80 %  loss 1.0810`."""
    parts = ["validation"]
    if "update" in record and number(record, "update") >= 0:
        parts += [f"update {int(number(record, 'update'))}", f"epoch {number(record, 'epoch'):.2f}"]
    elif "name" in record:
        parts.append(str(record["name"]))
    parts.append(f"acc {number(record, 'accuracy'):.2f} %")
    forms = {
        "accuracy_top5": "top-5 {:.2f} %",
        "map": "mAP {:.2f} %",
        "f1_micro": "F1 {:.2f} %",
        "loss": "loss {:.4f}",
    }
    parts += [form.format(number(record, name)) for name, form in forms.items() if name in record]
    if "latency_avg_ms" in record:
        parts.append(
            f"latency {number(record, 'latency_avg_ms'):.2f} ms (99 %: {number(record, 'latency_p99_ms'):.2f} ms)"
        )
    return "  ".join(parts)


def end_line(record: Record) -> str:
    """`done: 3900 updates in 12min 05s, 446 img/s, accuracy 91.20 % (best 91.35 % at update 3510)`."""
    text = f"{record.get('reason', 'done')}: {many(int(number(record, 'updates')), 'update')} in {readable_time(number(record, 'seconds'))}"
    if number(record, "images_per_second"):
        text += f", {readable_rate(number(record, 'images_per_second'))} img/s"
    if "accuracy" in record:
        text += f", accuracy {number(record, 'accuracy'):.2f} %"
    if number(record, "best_accuracy") > number(record, "accuracy"):
        text += f" (best {number(record, 'best_accuracy'):.2f} % at update {int(number(record, 'best_update'))})"
    return text


class CsvWriter(Observer):
    """`metrics.csv` and `validation.csv` of the run; a `style` adds its `training.csv` and its validation columns."""

    unwritten = "its rows are written when there is room"

    def __init__(self, run_dir: Path, style: LogStyle | None = None) -> None:
        columns = tuple(style.validation_columns) if style else ()
        self.metrics = CsvFile(run_dir / "metrics.csv", TRAINING_COLUMNS, "update")
        self.validations = CsvFile(
            run_dir / "validation.csv",
            columns + tuple(name for name in VALIDATION_COLUMNS if name not in columns),
            "update",
        )
        self._style = style
        self._training = (
            CsvFile(run_dir / "training.csv", tuple(style.training_columns), style.update_column) if style else None
        )

    def start(self, spec: Spec, resumed_at: int = 0) -> None:
        self.metrics.open(resumed_at)
        self.validations.open(resumed_at)
        if self._training is not None:
            self._training.open(resumed_at)

    def log(self, record: Record) -> None:
        self.metrics.append(record)
        if self._training is not None and self._style is not None:
            self._training.append(self._style.row(self._style.training_columns, record))

    def validation(self, record: Record) -> None:
        shown = self._style.row(self._style.validation_columns, record) if self._style else {}
        self.validations.append({**shown, **record})

    def end(self, record: Record) -> None:
        for file in filter(None, (self.metrics, self.validations, self._training)):
            file.flush()


class RunFiles(Observer):
    """`spec.json` (the numbers of the run, as `--dry-run --json` prints them) and `result.json` (the end record)."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def start(self, spec: Spec, resumed_at: int = 0) -> None:
        write_atomically(self._run_dir / "spec.json", json.dumps(finite(spec), indent=1, default=str))
        (self._run_dir / "result.json").unlink(missing_ok=True)

    def end(self, record: Record) -> None:
        write_atomically(self._run_dir / "result.json", json.dumps(finite(record), indent=1))


class JsonLines(Observer):
    """One JSON object per event, with `event` = start, log, validation or end, for programs that follow the run."""

    def __init__(self, stream: IO[str] | None = None, file: str | None = None) -> None:
        self._stream, self._file = stream, file

    def start(self, spec: Spec, resumed_at: int = 0) -> None:
        self._write("start", {"resumed_at": resumed_at, "spec": spec})

    def log(self, record: Record) -> None:
        self._write("log", record)

    def validation(self, record: Record) -> None:
        self._write("validation", record)

    def end(self, record: Record) -> None:
        self._write("end", record)

    def _write(self, event: str, fields: Any) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 3), **finite(fields)}, default=str) + "\n"
        if self._file is not None:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(line)
            return
        stream = self._stream or sys.stdout
        stream.write(line)
        stream.flush()


def finite(value: Any) -> Any:
    """NaN and infinity as text: JSON cannot express them and strict readers refuse Python's spelling."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def make_observers(options: Options, run_dir: str | os.PathLike[str]) -> list[Observer]:
    """The observers that the options ask for."""
    from conveyor.monitor.trackers import make_trackers

    folder, run = Path(run_dir), options.run
    style = log_style(run.log_style)
    shown: list[Observer] = [
        Terminal(
            quiet=run.quiet,
            style=style,
            log_file=folder / LOG,
            screen=not run.json_logs,
            share=run.profile != "off",
        ),
        CsvWriter(folder, style),
        RunFiles(folder),
    ]
    if run.json_logs:
        shown.append(JsonLines())
    if METRICS_FILE_VARIABLE in os.environ:
        shown.append(JsonLines(file=os.environ[METRICS_FILE_VARIABLE]))
    return shown + make_trackers(options, folder, progress.say)
