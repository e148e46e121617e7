"""Ray Train: `conveyor.ray.Trainer(options, scaling_config=..., run_config=...).fit()`, with what its users expect of `fit`.

Metrics of every log point and every checkpoint are reported to Ray; workers that fail, or whose number changes (elastic
`num_workers=(1, 4)`), go on where the run folder stands, with the bits of an undisturbed run. The folder is
`<storage_path>/<name>/run` where the storage is a file system, which all machines must see. Where it is not, the folder is
the worker's own, and a start that finds no run there goes on from the checkpoint that Ray kept.
"""

import json
import os
import uuid
import zlib
from pathlib import Path
from typing import Any

import ray.train
from pyarrow.fs import FileSystem, FileType, LocalFileSystem
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchTrainer
from torch import nn

from conveyor import api
from conveyor.errors import UserError
from conveyor.files import parse_json
from conveyor.run.folder import holds_run


class Report:
    """Reports to Ray, which wants a report of all workers at the same time: at log points, and once at the end.

    Checkpoints are written in the background, so one is reported at the log point that follows it, with the metrics of
    its own update.
    """

    on_every_worker = True

    def __init__(self) -> None:
        self._records: dict[int, dict[str, Any]] = {}
        self._written: Path | None = None

    def on_log(self, record: dict[str, Any]) -> None:
        self._keep(record)
        self.send()

    def on_validation(self, record: dict[str, Any]) -> None:
        shared = ("update", "epoch")
        self._keep({name if name in shared else f"validation_{name}": value for name, value in record.items()})

    def on_checkpoint(self, path: Path) -> None:
        self._written = path

    def send(self) -> None:
        """The newest checkpoint that was not reported to Ray with its metrics, else the newest metrics."""
        path, self._written = self._written, None
        newest = max(self._records, default=0)
        metrics = self._records.get(newest if path is None else int(path.name), {"update": newest})
        for old in [one for one in self._records if one < metrics["update"]]:
            del self._records[old]
        ray.train.report(metrics, checkpoint=None if path is None else ray.train.Checkpoint.from_directory(path))

    def end(self, run: api.Run) -> None:
        """What is left; a run that had come to its end before has nothing but its result."""
        if not self._records:
            self._keep(
                {"update": run.updates} | ({} if run.accuracy is None else {"validation_accuracy": run.accuracy})
            )
        self.send()

    def _keep(self, record: dict[str, Any]) -> None:
        self._records.setdefault(int(record["update"]), {}).update(record)


def train(*, model: str | nn.Module | None = None, data: Any = None, **options: Any) -> api.Run:
    """`conveyor.train` inside a training function of Ray Train; call it on every worker."""
    context, report = ray.train.get_context(), Report()
    try:
        storage = context.get_storage()
    except NotImplementedError:
        raise UserError(
            "Ray's local mode (num_workers=0) has no storage: say num_workers=1, or call conveyor.train"
        ) from None
    if "run_dir" not in options and isinstance(storage.storage_filesystem, LocalFileSystem):
        options["run_dir"] = str(Path(storage.experiment_fs_path) / "run")
    options.setdefault("run_dir", f"runs/{context.get_experiment_name()}")
    options.setdefault("resume", "auto")
    kept, main = ray.train.get_checkpoint(), context.get_world_rank() == 0
    again = holds_run(Path(options["run_dir"]))
    if kept is not None and main and not again:
        options["checkpoint_path"] = kept.to_directory()
    # Ray does not tell its workers how often it started them: their storage does, which outlives them.
    files, name = storage.storage_filesystem, f"starts-{zlib.crc32(str(options['run_dir']).encode()):08x}.json"
    counter = f"{storage.experiment_fs_path}/{name}"
    starts = broadcast_from_rank_zero(_count(files, counter, again=again or kept is not None) if main else None)
    os.environ |= {"CONVEYOR_JOB": starts["job"], "CONVEYOR_STARTS": str(starts["starts"])}
    callbacks = [*options.pop("callbacks", ()), report]
    try:
        run = api.train(model=model, data=data, callbacks=callbacks, **options)
    finally:
        del os.environ["CONVEYOR_JOB"], os.environ["CONVEYOR_STARTS"]  # the next run of this process has its own
    report.end(run)
    if main:
        files.delete_file(counter)
    return run


def _count(files: FileSystem, path: str, *, again: bool) -> dict[str, Any]:
    """{job, starts}: a name for these starts, and how many before this one left a run that did not come to its end."""
    counted: dict[str, Any] = {"job": uuid.uuid4().hex, "starts": 0}
    if again and files.get_file_info(path).type == FileType.File:
        with files.open_input_stream(path) as file:
            found = parse_json(file.read())
        counted = {"job": str(found["job"]), "starts": int(found["starts"]) + 1}
    with files.open_output_stream(f"{path}.tmp") as file:
        file.write(json.dumps(counted).encode())
    files.move(f"{path}.tmp", path)
    return counted


def _worker(options: dict[str, Any]) -> None:
    train(**options)


def Trainer(options: dict[str, Any] | None = None, **about: Any) -> TorchTrainer:  # noqa: N802 - named as Ray's are
    """A `TorchTrainer` that trains with `options`, the keyword arguments of `conveyor.train`; the others are its own."""
    return TorchTrainer(_worker, train_loop_config=dict(options or {}), **about)
