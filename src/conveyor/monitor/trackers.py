"""TensorBoard and Weights & Biases: the same records, named `train/...`, `validation/...` and `weights/...`."""

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conveyor.files import write_atomically
from conveyor.monitor import eventfile
from conveyor.monitor.observers import Observer, Spec
from conveyor.monitor.records import Record
from conveyor.options import Options

if TYPE_CHECKING:
    from conveyor.monitor.histograms import Histogram


class TensorBoard(Observer):
    """Scalars of every log point and validation in `<run>/tensorboard`, and the options on the text page."""

    def __init__(self, folder: Path, options_text: str = "") -> None:
        self._folder, self._options_text = folder, options_text
        self._file: eventfile.EventFile | None = None

    def start(self, spec: Spec, resumed_at: int = 0) -> None:
        older = self._folder.is_dir() and any(self._folder.iterdir())
        self._file = eventfile.EventFile(self._folder)
        if older:
            self._file.restart(resumed_at + 1 if resumed_at else 0)
        if self._options_text and not resumed_at:
            indented = "".join(f"    {line}\n" for line in self._options_text.splitlines())
            self._file.add(0, [eventfile.text("options", indented)])

    def log(self, record: Record) -> None:
        self._add("train", record)

    def validation(self, record: Record) -> None:
        self._add("validation", record)

    def weights(self, update: int, found: "Mapping[str, Histogram]") -> None:
        if self._file is not None:
            self._file.add(update, [eventfile.histogram(f"weights/{name}", one) for name, one in found.items()])

    def _add(self, group: str, record: Record) -> None:
        if self._file is not None:
            values = [eventfile.scalar(name, value) for name, value in named(group, record).items()]
            self._file.add(max(0, int(record.get("update", 0))), values)


class Wandb(Observer):
    """A run in Weights & Biases. Without a key on this machine it is kept offline in the run folder (`wandb sync` sends it).

    A resumed run continues the same entry: its identifier is kept in `wandb-id.txt`.
    """

    def __init__(self, run_dir: Path, project: str, name: str | None = None, tags: tuple[str, ...] = ()) -> None:
        self._run_dir, self._project, self._name, self._tags = run_dir, project, name, tags
        self._run: Any = None

    def start(self, spec: Spec, resumed_at: int = 0) -> None:
        import wandb

        known = self._run_dir / "wandb-id.txt"
        if not (resumed_at and known.exists()):
            write_atomically(known, secrets.token_hex(4))
        mode = os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")
        self._run = wandb.init(
            project=self._project,
            name=self._name or self._run_dir.name,
            tags=list(self._tags),
            config=spec,
            dir=str(self._run_dir),
            id=known.read_text(encoding="utf-8").strip(),
            resume="allow",
            mode=mode,  # type: ignore[arg-type]
            settings=wandb.Settings(console="off", quiet=True),
        )
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    def log(self, record: Record) -> None:
        self._run.log({"update": int(record.get("update", 0)), **named("train", record)})

    def validation(self, record: Record) -> None:
        self._run.log({"update": max(0, int(record.get("update", 0))), **named("validation", record)})

    def weights(self, update: int, found: "Mapping[str, Histogram]") -> None:
        import wandb

        drawn = {
            f"weights/{name}": wandb.Histogram(np_histogram=(one.counts, one.edges)) for name, one in found.items()
        }
        self._run.log({"update": update, **drawn})

    def end(self, record: Record) -> None:
        self._run.summary.update(dict(record))
        self._run.finish()


def named(group: str, record: Record) -> dict[str, float]:
    """`{"train/loss": 1.2, ...}`: every number of a record but the update, which is the axis."""
    return {
        f"{group}/{key}": float(value)
        for key, value in record.items()
        if key != "update" and not isinstance(value, str)
    }


def make_trackers(options: Options, run_dir: Path, note: Callable[[str], None]) -> list[Observer]:
    """The trackers that the options ask for; `note` is called for an option without effect."""
    run, trackers = options.run, list[Observer]()
    if run.tensorboard:
        trackers.append(TensorBoard(run_dir / "tensorboard", options.to_yaml()))
    if run.wandb:
        trackers.append(Wandb(run_dir, run.wandb_project, run.wandb_name, run.wandb_tags))
    if run.weight_histograms and not trackers:
        note("note: --weight-histograms has no effect without --tensorboard or --wandb")
    return trackers
