"""Run a translation, or print its plan."""

import argparse
import dataclasses
import json
import os
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conveyor.dialects import splits
from conveyor.dialects.translation import Translation
from conveyor.launch.rank import Place, detect
from conveyor.options import Options
from conveyor.run.preflight import check_start
from conveyor.spec import RunSpec, random_weights, resolve
from conveyor.world import restarts

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def run(translation: Translation) -> int:
    """Print the command line as a command of ours, then run it; returns the exit code."""
    if translation.dry_run:
        return dry_run(translation)
    if translation.command == "train":
        for options in (translation.options, *([translation.then] if translation.then else [])):
            splits.check(options, options.run.log_style)
    chosen = with_folder(translation, os.environ)
    place = detect(os.environ)
    if place is None or place.rank == 0:
        print("\n".join([*first_lines(chosen), chosen.text()]))
        for note in (*chosen.notes, *rename_earlier_run(chosen, place)):
            print(f"note: {note}")
        if chosen.folder and chosen.options.run.run_dir:
            print(f" Saving to {chosen.options.run.run_dir}")
        sys.stdout.flush()
    if chosen.command == "data" and place is not None and place.rank > 0:
        return 0  # one worker measures; several would disturb each other
    if chosen.command in ("request", "export"):
        from conveyor.dialects.serving import run as serve

        return serve(chosen)
    if chosen.then is not None:
        from conveyor.commands.train import execute

        return execute(chosen.options, chosen.options.changed(), [chosen.then])
    return run_command(chosen.arguments(), told=True)


def first_lines(translation: Translation) -> list[str]:
    """The first line of output when random weights are validated; none for generated images, which show speed only."""
    data = translation.options.data
    if translation.command != "validate" or data.generated_data or data.synthetic_data:
        return []
    sentence = random_weights(translation.options.replace(training=False))
    return [] if sentence is None else [sentence]


def rename_earlier_run(translation: Translation, place: Place | None) -> list[str]:
    """Rename an earlier run in the folder: as in the originals, the same command writes to the same folder again."""
    run = translation.options.run
    if translation.command != "train" or run.run_dir is None or run.resume == "auto" or not Path(run.run_dir).exists():
        return []
    from conveyor.run.folder import holds_run, move_aside

    folder = Path(run.run_dir)
    if not holds_run(folder) or (place is not None and restarts.goes_on()):
        return []
    return [f"{folder} holds an earlier run: it is kept as {move_aside(folder)}, and this one takes its place"]


def run_command(words: Sequence[str], *, told: bool = False) -> int:
    """Run one of our own commands: the words after `conveyor`; `told`: the first line of output has been printed."""
    from conveyor import commands
    from conveyor.options.parser import Parser

    module = commands.load(words[0])
    parser: argparse.ArgumentParser = Parser(prog=f"conveyor {words[0]}")
    module.add_arguments(parser)
    code = module.run(parser.parse_args(list(words[1:]), argparse.Namespace(told=told)))
    assert isinstance(code, int)
    return code


def with_folder(translation: Translation, environment: Mapping[str, str]) -> Translation:
    """The translation with the run folder's name filled in, the same in every worker of a job."""
    if not translation.folder or translation.options.run.run_dir is not None:
        return translation
    # Our launcher's number stays the same when a job is started again; the port does not.
    job = restarts.job(environment) or "".join(
        environment.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")
    )
    number = zlib.crc32(job.encode()) if job else int.from_bytes(os.urandom(4), "big")
    letters = "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(3))
    stamp = letters if job else time.strftime("%Y%m%d-%H%M%S")
    folder = translation.folder.replace("{random}", letters).replace("{time}", stamp)
    return dataclasses.replace(translation, options=translation.options.replace(run_dir=folder))


def dry_run(translation: Translation) -> int:
    """Print the plan; with --json one object on standard output. Nothing is contacted, no data are read."""
    if "{" not in translation.folder:
        translation = with_folder(translation, os.environ)
    notes = list(translation.notes)
    plan: dict[str, Any] = {}
    text = ""
    if translation.command != "average":
        from conveyor.run.describe import describe

        spec = resolve(planned_options(translation))
        if translation.command == "train":
            check_plan(spec, notes)
        plan, text = spec.to_json(translation.command), describe(spec)
        notes += [note for note in spec.notes if note not in notes]
    if translation.then is not None:
        following = resolve(translation.then)
        splits.check(following.options, following.options.run.log_style)
        plan["then"] = following.to_json()
        text = f"{text}\nthen\n{describe(following)}"
    plan = {**plan, "notes": notes, "command": translation.text()}
    if translation.json:
        print(json.dumps(plan, indent=1))
        return 0
    first = first_lines(translation)
    print("\n".join([*first, translation.text()]))
    for note in notes:
        if note not in first:
            print(f"note: {note}")
    print("\n".join(line for line in text.splitlines() if not line.startswith(("note ", "command "))))
    return 0


def check_plan(spec: RunSpec, notes: list[str]) -> None:
    """Refuse what the run would refuse when it starts; data may be missing in a plan: a note says where."""
    options = spec.options
    splits.check(options, options.run.log_style)
    check_start(spec, options.changed())
    folder = options.data.data_dir
    if folder is not None and not Path(folder).exists():
        notes.append(f"{folder} does not exist: a run looks for its data there")


def planned_options(translation: Translation) -> Options:
    """What a run would use: for a stored run its own options with what the command changes."""
    path, overrides = translation.options.run.checkpoint_path, translation.settings.get("overrides")
    if translation.command == "restore":
        from conveyor.commands.restore import restored_options

        assert path is not None
        assert overrides is not None
        return restored_options(Path(path), dict(overrides))
    if path is None or translation.command != "validate":
        return translation.options
    from conveyor.commands.validate import stored

    kept = stored(Path(path)) or Options()
    given = translation.options.changed() if overrides is None else {"checkpoint_path": path, **overrides}
    return kept.updated(given).replace(training=False)
