"""The run folder: its name, its options, and which folders are refused."""

import os
import time
from pathlib import Path
from typing import Any

from conveyor.checkpoint.lock import RunLock
from conveyor.checkpoint.store import listing
from conveyor.errors import UserError
from conveyor.files import free_name, read_object, write_atomically
from conveyor.options import Options
from conveyor.remote.data import absolute
from conveyor.spec import OWN_MODEL, RunSpec

OPTIONS = "options.yml"
DEFAULT_PARENT = "runs"


def default_name(spec: RunSpec, stamp: str | None = None) -> str:
    """`resnet8-digits-20260131-235959`, or with a job's number in place of the time."""
    stamp = stamp or time.strftime("%Y%m%d-%H%M%S", time.localtime())
    return "-".join(
        name.replace(":", ".").replace("/", "-") for name in (spec.subject.name, _short(spec.data.name), stamp)
    )


def _short(data: str) -> str:
    """`/home/me/pets.py:photos` -> `pets.py:photos`."""
    return data.rpartition("/")[2]


def choose(spec: RunSpec) -> Path:
    """The folder for a new run: as asked, or a new name under runs/; nothing is made yet."""
    asked = spec.options.run.run_dir
    if asked is not None:
        return Path(asked)
    return free_name(Path(DEFAULT_PARENT) / default_name(spec))


def holds_run(folder: Path) -> bool:
    """Whether a run was started in `folder`."""
    return (folder / OPTIONS).exists() or bool(listing(folder))


def refuse_taken(folder: Path) -> None:
    """A new run must not mix with an old one."""
    if holds_run(folder):
        raise UserError(f"{folder} already holds a run: choose another --run-dir, or go on with it by --resume auto")


def move_aside(folder: Path) -> Path:
    """Rename the folder of a run that is over, so that its name is free: `run` becomes `run-1`; where it is now."""
    aside, whole = free_name(folder, first=1), folder.resolve()
    with RunLock(folder):
        if whole in (Path.cwd(), *Path.cwd().parents):
            raise UserError(f"{folder} holds a run already and is the folder that you are in: choose another folder")
        try:
            folder.rename(aside)
        except OSError as problem:
            raise UserError(
                f"{folder} holds a run already and cannot be renamed ({problem.strerror}): choose another folder"
            ) from None
    return aside


def resolved_options(spec: RunSpec, folder: Path) -> Options:
    """The options with every default that depends on something else written out, so that they rerun the run exactly."""
    changes: dict[str, object] = {
        "data": spec.data.name,
        "image_size": spec.subject.image_size,
        "num_classes": spec.subject.num_classes,
        "in_channels": spec.subject.in_channels,
        "run_dir": os.fspath(folder),
    }
    if spec.options.data.data_dir is not None:
        changes["data_dir"] = absolute(spec.options.data.data_dir)
    if spec.subject.name != OWN_MODEL:
        changes["model"] = spec.subject.name
    if spec.options.length.updates is None:
        changes["epochs"] = float(spec.length.epochs)
    return spec.options.replace(**changes)


def write_options(folder: Path, options: Options) -> None:
    """Keep the resolved options with the run."""
    write_atomically(folder / OPTIONS, options.to_yaml())


def read_result(folder: Path) -> dict[str, Any]:
    """How the run in `folder` ended; nothing if it has not."""
    return read_object(folder / "result.json")


def read_options(folder: Path) -> Options:
    """The options that the run in `folder` was started with."""
    path = folder / OPTIONS
    if not path.exists():
        raise UserError(f"{folder} is not a run: it has no {OPTIONS}")
    return Options.from_yaml(path)
