"""The options of a stored run, and which of them a restored run may change (no torch here)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.options import Options, specs

FREE_SECTIONS = ("length", "schedule")
"""Sections that shape the future only: how long, and the learning rate from here on."""


def may_change(name: str) -> bool:
    """Whether an override of this option leaves the updates already made as they were."""
    spec = specs()[name]
    return not spec.about.changes_result or spec.section in FREE_SECTIONS or name in ("data_dir", "checkpoint_path")


def overridden(stored: Options, overrides: Mapping[str, Any]) -> Options:
    """`stored` with what the user changed; an option that would change the past is refused."""
    changed = stored.updated(overrides)
    if changed.length.updates is not None and changed.length.epochs is not None:
        # The stored end is one of the two; the new one replaces it.
        replaced = "epochs" if "updates" in overrides else "updates"
        changed = changed.replace(**{replaced: None})
    before, after = stored.flat(), changed.flat()
    for name in specs():
        if before[name] != after[name] and not may_change(name) and name not in ("epochs", "updates"):
            flag = specs()[name].flag
            raise UserError(
                f"{flag} {after[name]} would change what the run has already computed (it was {before[name]}): "
                f"leave it out, or start a new run from its weights with conveyor train --weights"
            )
    return changed


def is_weights_file(path: Path) -> bool:
    """Whether a path names plain weights rather than a checkpoint folder."""
    return path.is_file() and not (path.parent / "manifest").exists()


def options_for_checkpoint(path: Path) -> Options | None:
    """The options of the run that `path` (a checkpoint, a run, a folder) belongs to, free to run elsewhere; None if unknown."""
    from conveyor.checkpoint import store
    from conveyor.training import rundir

    found = store.locate(path)
    if found.run is not None and (found.run / rundir.OPTIONS).exists():
        options = rundir.read_options(found.run)
    elif found.checkpoints:
        options = stored_options(None, store.load_newest(found.checkpoints[-1])[1].options)
    else:
        return None
    return options.replace(run_dir=None, resume="no", weights=None)


def stored_options(run: Path | None, in_checkpoint: Mapping[str, Any]) -> Options:
    """The options of a run: those that the checkpoint carries, else the run folder's file."""
    if in_checkpoint:
        return Options.from_mapping(in_checkpoint, where="the checkpoint's options")
    if run is None:
        raise UserError("the checkpoint carries no options: give them on the command line, with --weights")
    from conveyor.training.rundir import read_options

    return read_options(run)
