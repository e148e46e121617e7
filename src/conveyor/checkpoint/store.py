"""The checkpoints of a run: which there are, the newest complete one, which to keep."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conveyor.checkpoint import folder as one
from conveyor.checkpoint.choice import CHECKPOINTS as CHECKPOINTS
from conveyor.checkpoint.choice import DEFAULT, EXPORT, MANIFEST, MODEL, STATE, find, is_checkpoint, read_best, run_of
from conveyor.checkpoint.choice import is_numbered as is_numbered
from conveyor.checkpoint.choice import listing as listing
from conveyor.checkpoint.state import State
from conveyor.errors import UserError, nothing_at
from conveyor.monitor.run_files import OPTIONS

AVERAGED = "average-"
SHOWN = 4
"""Names in an error, at most."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What a path means: a run with all its checkpoints, a folder of checkpoints, or a single one."""

    checkpoints: list[Path]
    """In ascending order of updates, averaged ones last."""
    run: Path | None
    """The run folder that they belong to, when there is one."""
    single: bool
    """Whether the path named one checkpoint."""


def numbered(parent: Path | str) -> list[Path]:
    """The checkpoints that training saved, by ascending update: those of `listing` without averages."""
    return [entry for entry in listing(parent) if is_numbered(entry)]


def locate(path: Path | str) -> Found:
    """What `--checkpoint-path` means: a checkpoint, a file in it, a run, or a folder of checkpoints."""
    given = path = Path(path)
    if path.is_file() and is_checkpoint(path.parent) and path.name in (MANIFEST, STATE, MODEL):
        path = path.parent
    if is_checkpoint(path):
        return Found([path], run_of(path), single=True)
    found = listing(path)
    if (path / EXPORT).exists():
        raise UserError(
            f"{path} is an export, for conveyor predict and conveyor serve: give the run that it was made from"
        )
    if not path.exists():
        raise nothing_at(given, f"a run folder or a checkpoint in its {CHECKPOINTS}/ folder")
    return Found(found, run_of(found[0]) if found else (path if path.is_dir() else None), single=False)


def load_chosen(path: Path | str, which: str | None) -> tuple[Path, State]:
    """The checkpoint that `--checkpoint` means; a damaged one is skipped for `last` and an error for any other."""
    if which in (None, DEFAULT):
        if which is not None:
            find(Path(path), which)  # a single checkpoint has no last one
        return load_newest(path)
    found = find(Path(path), which)
    return found, one.load(found)


def existing(path: Path | str) -> Found:
    """`locate`, where there must be a checkpoint; else an error that says what is there and what can be read."""
    found = locate(path)
    if found.checkpoints:
        return found
    folder = Path(path)
    there = (
        sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(".")) if folder.is_dir() else []
    )
    if (folder / CHECKPOINTS).is_dir():
        raise UserError(
            f"{path} holds a run that has saved no checkpoint yet: wait for its first one, or start it again"
        )
    more = f" and {len(there) - SHOWN} more" if len(there) > SHOWN else ""
    what = f"holds {', '.join(there[:SHOWN])}{more}" if there else "is empty" if folder.is_dir() else "is a file"
    raise UserError(
        f"there is no checkpoint of conveyor in {path}, which {what}: give a run folder, a checkpoint in its {CHECKPOINTS}/ "
        "folder, or one file of plain weights (safetensors, or a torch state dict) with its --model"
    )


def load_newest(path: Path | str, load: Callable[[Path], State] = one.load) -> tuple[Path, State]:
    """The newest complete checkpoint (of a run, or the given one); damaged ones are logged and skipped.

    With `load=folder.load_without_tensors` only what that one checks counts as damage.
    """
    found = locate(path)
    if found.single:
        return found.checkpoints[0], load(found.checkpoints[0])
    damaged: list[str] = []
    for candidate in reversed([entry for entry in found.checkpoints if is_numbered(entry)]):
        try:
            return candidate, load(candidate)
        except one.DamagedError as problem:
            damaged.append(str(problem))
            _logger.warning("%s, as is done now", problem)
    if damaged:
        raise UserError(
            f"no complete checkpoint in {path}: {len(damaged)} found, all damaged; the newest: {damaged[0]}"
        )
    if not (Path(path) / OPTIONS).exists():
        raise UserError(f"no checkpoint in {path}, which is no run: give a run folder, a checkpoint or an export")
    raise UserError(f"no checkpoint in {path}: the run ended before its first one; start it again")


def readable(paths: Sequence[Path], *, strict: bool = False) -> Iterator[tuple[Path, State]]:
    """Each complete checkpoint with its state; a damaged one is reported and skipped, with `strict` it is an error."""
    for path in paths:
        try:
            yield path, one.load(path)
        except one.DamagedError as problem:
            if strict:
                raise
            _logger.warning("%s", problem)


def prune(run: Path, keep: int | None) -> list[Path]:
    """Delete all but the newest `keep` checkpoints and the best one; averaged ones stay."""
    if keep is None:
        return []
    best = read_best(run)
    surplus = [entry for entry in numbered(run / CHECKPOINTS)[:-keep] if best is None or int(entry.name) != best[0]]
    for entry in surplus:
        one.remove(entry)
    return surplus
