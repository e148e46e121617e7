"""The run folder: its name, its options, and which folders are refused."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

from conveyor.checkpoint.choice import listing
from conveyor.checkpoint.lock import RunLock
from conveyor.errors import UserError
from conveyor.files import free_name, read_object, remove_unfinished, write_atomically
from conveyor.monitor import run_files
from conveyor.monitor.run_files import LOCK, is_run_file, others, some
from conveyor.options import Options
from conveyor.remote.data import absolute
from conveyor.remote.mirror import nearby
from conveyor.spec import OWN_MODEL, RunSpec

OPTIONS = run_files.OPTIONS
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


def refuse_taken(folder: Path, *, resumes: bool) -> None:
    """A new run must not mix with an old one, nor write over the files of others."""
    if holds_run(folder):
        if resumes:
            return
        raise UserError(
            f"{nearby(folder)} already holds a run: choose another --run-dir, or go on with it by --resume auto"
        )
    touched = sorted(entry.name for entry in folder.iterdir() if entry.name != LOCK and is_run_file(entry.name))
    if touched:
        raise UserError(
            f"{folder} holds no run, but {some(touched)}, where a run would write: choose another --run-dir"
        )


def foreign_files(folder: Path) -> list[str]:
    """A note about what else lies in the folder of a new run."""
    foreign = [name for name in others(folder) if not name.startswith(".")]
    return [f"{folder} holds other files too ({some(foreign)}): the run leaves them alone"] if foreign else []


def delete(folder: Path) -> str:
    """Delete what the run in `folder` wrote, and the folder if nothing else is in it; what to tell. A link goes too."""
    real = folder.resolve()
    if folder.is_symlink():
        folder.unlink()
    if not holds_run(real):
        return f"deleted {folder}"  # listed twice, by a link
    with RunLock(real):
        remove_unfinished(real)
        for entry in (entry for entry in real.iterdir() if entry.name != LOCK and is_run_file(entry.name)):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        (real / LOCK).unlink()
    if foreign := others(real):
        return f"deleted the run in {folder}; the folder stays, for there are other files in it ({some(foreign)})"
    if real in (Path.cwd(), *Path.cwd().parents):
        return f"deleted the run in {folder}; the folder stays, for you are in it"
    real.rmdir()
    return f"deleted {folder}"


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
