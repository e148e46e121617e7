"""Commands of the dialects on a stored run: options that were typed are distinguished from those of the run.

The stored options are the base. Of the command line only what was given counts: an option that may change takes effect
(how long, what is logged, saved and validated, where it runs), any other is refused under the name that was typed. The
learning rate is refused: the programs read it from the stored run. `conveyor restore` can change it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conveyor.dialects.reader import Values
from conveyor.dialects.table import Row
from conveyor.dialects.translation import Translation
from conveyor.errors import UserError
from conveyor.options import Options, specs
from conveyor.options.options import arguments_of
from conveyor.options.validation import has_effect, notes_about, typed_flag, without_updates

PATHS = ("checkpoint_path", "checkpoint_input_path", "checkpoint_input_dir", "restore_path")
"""Keys that name the stored run itself."""
FOLDERS = ("logs_path", "checkpoint_output_dir")
"""Keys that name the folder in which the run goes on; other parts of a run's name are ignored: it has its own."""
NAMING = ("log_dir", "name_suffix", "log_dir_string")
CHOICES = ("config", "config_path")


def restored(
    values: Values,
    translate: Callable[[Values], Translation],
    path: str,
    style: str,
    stored: Options,
    seed: dict[str, Any],
) -> Translation:
    """`conveyor restore` for the run of `stored`.

    `seed` has its numbers under the dialect's names, for options that depend on them.
    """
    from conveyor.run.stored_options import may_change, shown

    made, plain = _translated(values, translate, seed)
    wanted, without, kept = made.options.flat(), plain.options.flat(), stored.flat()
    notes = [note for note in made.notes if note not in plain.notes or note in values.notes]
    overrides: dict[str, Any] = {"log_style": style}
    left: list[str] = []
    for name, flag, typed in _named(values):
        if name == "run_dir" or wanted[name] == kept[name]:
            continue
        if may_change(name) and specs()[name].section != "schedule":
            overrides[name] = wanted[name]
        elif not typed:
            left.append(flag)
        elif may_change(name):
            raise UserError(
                f"{flag} stays as the run in {path} has it ({specs()[name].flag} {shown(kept[name])}): leave it out; conveyor "
                f"restore {path} {specs()[name].flag} {shown(wanted[name])} changes it from here on"
            )
        else:
            raise UserError(
                f"{flag} would change what the run in {path} has already computed ({specs()[name].flag} is "
                f"{shown(kept[name])} there, not {shown(wanted[name])}): leave it out, or start a new run from its weights"
            )
    for name in specs():
        # What the dialect derives from the options that were given; a value that it no longer sets stays as stored.
        follows = wanted[name] not in (without[name], kept[name], specs()[name].default) and may_change(name)
        if follows and name not in overrides and name not in ("run_dir", "checkpoint_path"):
            overrides[name] = wanted[name]
    if left:
        notes.append(f"--config: {', '.join(dict.fromkeys(left))} stay as they are in the stored run")
    notes += [
        f"{values.spelling(key)} has no effect: the run goes on in its folder" for key in NAMING if values.has(key)
    ]
    return _command("restore", values, path, overrides, notes)


def validated(values: Values, translate: Callable[[Values], Translation], path: str) -> Translation:
    """`conveyor validate` for a stored run: of the command line what was given and a validation reads."""
    made, plain = _translated(values, translate, {})
    wanted = made.options.flat()
    named = {name for name, _, _ in _named(values) if has_effect(name) and name not in ("run_dir", "checkpoint_path")}
    overrides = {name: wanted[name] for name in specs() if name in named}
    notes = [note for note in made.notes if note not in plain.notes or note in values.notes]
    return _command("validate", values, path, overrides, [*notes, *without_effect(values)])


def as_validation(values: Values, made: Translation) -> Translation:
    """A validation that the command line describes in full, without the options of training updates."""
    notes = dict.fromkeys((*made.notes, *without_effect(values)))
    return dataclasses.replace(made, options=without_updates(made.options), notes=tuple(notes))


def without_effect(values: Values) -> list[str]:
    """Notes about the options on the command line that a validation does not read."""
    rows = [(row.flag, row.outcomes) for key, row in values.rows.items() if key in values.given]
    return notes_about([*rows, *((typed_flag(name, value), (name,)) for name, value in values.own.items())])


def stored_options(path: str) -> Options:
    """The options of the run that a path belongs to; an error when there is none."""
    from conveyor.commands.restore import restored_options

    return restored_options(Path(path), {})


def batch_in_words(stored: Options, accumulation: str) -> dict[str, Any]:
    """The stored topology under the names of a dialect."""
    from conveyor.topology import Topology

    topology, _ = Topology.from_options(stored.batch)
    return {"batch_size": topology.micro_batch, accumulation: topology.accumulation, "replicas": topology.replicas}


def _translated(
    values: Values, translate: Callable[[Values], Translation], seed: Mapping[str, Any]
) -> tuple[Translation, Translation]:
    """The translation of the command line for such a run, and the translation with nothing but the path."""
    paths = {key: value for key, value in values.given.items() if key in PATHS}
    made = translate(_copy(values, values.given, {**seed, **values.config}, values.own))
    return made, translate(_copy(values, paths, dict(seed), {}))


def _copy(values: Values, given: dict[str, Any], config: dict[str, Any], own: dict[str, Any]) -> Values:
    copy = Values(list(values.rows.values()))
    copy.given, copy.config, copy.config_name, copy.own = dict(given), config, values.config_name, dict(own)
    copy.notes, copy.spelled = list(values.notes), set(values.spelled)
    return copy


def _named(values: Values) -> list[tuple[str, str, bool]]:
    """(our option, the name that was typed, whether on the command line) of everything that was given."""
    rows: list[Row] = [row for key, row in values.rows.items() if values.has(key) and key not in (*PATHS, *CHOICES)]
    found = [(name, row.flag, row.key in values.given) for row in rows for name in row.outcomes]
    return found + [(name, specs()[name].flag, True) for name in values.own]


def _command(command: str, values: Values, path: str, overrides: dict[str, Any], notes: list[str]) -> Translation:
    folder = next((values[key] for key in FOLDERS if values.has(key)), values.own.get("run_dir"))
    overrides |= {} if folder is None else {"run_dir": folder}
    words = ["--checkpoint-path", path]
    for name, value in overrides.items():
        if value not in (None, ()):
            words += arguments_of(specs()[name], specs()[name].coerce(value))
    options = Options().replace(checkpoint_path=path, run_dir=overrides.get("run_dir"))
    return Translation(
        command,
        options,
        tuple(dict.fromkeys(notes)),
        tuple(words),
        dry_run=values.dry_run,
        json=values.json,
        settings={"overrides": {name: value for name, value in overrides.items() if value not in (None, ())}},
    )
