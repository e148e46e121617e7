"""The options of a stored run, and which of them a restored run may change (no torch here)."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.layout import Machine, parse_layout
from conveyor.options import Options, specs
from conveyor.options.batch import LayoutOptions
from conveyor.options.coerce import to_plain
from conveyor.options.validation import without_updates
from conveyor.topology import Topology

FREE_SECTIONS = ("length", "schedule")
"""Sections that affect later updates only: the length, and the learning rate from here on."""


REPLACED = (
    ("updates", "epochs"),
    ("epochs", "updates"),
    ("logs_per_epoch", "updates_per_log"),
    ("checkpoints_per_epoch", "updates_per_checkpoint"),
)
"""(an option, the stored one that it takes the place of): two ways to say the same."""
AFTERWARDS = ("data_dir", "checkpoint_path", "average_last", "average_decay")
"""Where the same images lie now, and what is made of the checkpoints after the last update."""


def may_change(name: str) -> bool:
    """Whether an override of this option leaves the updates already made as they were."""
    spec = specs()[name]
    return not spec.about.changes_result or spec.section in FREE_SECTIONS or name in AFTERWARDS


def overridden(stored: Options, overrides: Mapping[str, Any]) -> Options:
    """`stored` with what the user changed; an option that would change updates already made is refused."""
    changed = stored.updated(overrides)
    for given, replaced in REPLACED:
        if given in overrides and replaced not in overrides:
            changed = changed.replace(**{replaced: None})
    check_past(stored, changed)
    return changed


def check_past(stored: Options, now: Options) -> None:
    """Refuse to resume the run of `stored` with `now` if that would change what it has already computed."""
    before, after = ({**one.flat(), **one.by_task()} for one in (stored, now))
    # Where the stages are cut changes no bit, and a layout of depth 1 has stored no names; how many they are counts.
    same_stages = _stages(stored) == _stages(now)
    for name, spec in specs().items():
        if may_change(name) or before[name] == after[name] or (name == "splits" and same_stages):
            continue
        raise UserError(
            f"{spec.flag} {shown(after[name])} would change what the run has already computed (it was "
            f"{shown(before[name])}): leave it out, or start a new run from its weights with conveyor train --weights"
        )


def shown(value: Any) -> str:
    """A value as it is typed."""
    plain = to_plain(value)
    if isinstance(plain, list):
        return " ".join(map(str, plain)) or "none"
    return "not given" if plain is None else str(plain)


def _stages(options: Options) -> int:
    return Topology.from_options(options.batch)[0].stages


def is_weights_file(path: Path) -> bool:
    """Whether a path names plain weights rather than a checkpoint folder."""
    return path.is_file() and not (path.parent / "manifest").exists()


def with_plain_weights(options: Options) -> Options:
    """The same, where `--checkpoint-path` names a file of plain weights, with `--weights` instead."""
    path = options.run.checkpoint_path
    return options.replace(weights=path, checkpoint_path=None) if path and is_weights_file(Path(path)) else options


def options_for_validation(path: Path) -> Options:
    """The options to validate `path` (a checkpoint, a run, a folder of checkpoints) with, wherever that is.

    What the run computes is taken over, but not its folder, nor a layout that this machine has no place for.
    """
    from conveyor.checkpoint import store
    from conveyor.checkpoint.folder import load_without_tensors
    from conveyor.run import folder

    found = store.existing(path)
    if found.run is not None and (found.run / folder.OPTIONS).exists():
        options = folder.read_options(found.run)
    else:
        options = stored_options(None, load_without_tensors(found.checkpoints[-1]).options)
    options = options.replace(run_dir=None, checkpoint_path=None, weights=None)
    return without_updates(dataclasses.replace(options, layout=_where(options.layout)))


def _where(asked: LayoutOptions) -> LayoutOptions:
    """Where the run was asked to run, if this machine has as much; else nothing in particular."""
    here = Machine.here(asked.device)
    lanes, depth = (1, 1) if asked.layout == "auto" else parse_layout(asked.layout)
    fits = lanes * depth <= (here.accelerators or here.cores) and (asked.device != "cuda" or here.accelerators)
    fits = fits and (not here.accelerators or all(number < here.accelerators for number in asked.device_ids))
    return asked if fits else LayoutOptions()


def stored_options(run: Path | None, in_checkpoint: Mapping[str, Any]) -> Options:
    """The options of a run: those that the checkpoint carries, else the run folder's file."""
    if in_checkpoint:
        return Options.from_mapping(in_checkpoint, where="the checkpoint's options")
    if run is None:
        raise UserError("the checkpoint carries no options: give them on the command line, with --weights")
    from conveyor.run.folder import read_options

    return read_options(run)
