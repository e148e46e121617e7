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

from conveyor.dialects.translation import Translation
from conveyor.launch.place import detect
from conveyor.options import Options

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def run(translation: Translation) -> int:
    """Say what the command line is in our words, then run it; returns the exit code."""
    if translation.dry_run:
        return dry_run(translation)
    chosen = with_folder(translation, os.environ)
    place = detect(os.environ)
    if place is None or place.rank == 0:
        print(chosen.text())
        for note in chosen.notes:
            print(f"note: {note}")
        if chosen.folder and chosen.options.run.run_dir:
            print(f" Saving to {chosen.options.run.run_dir}")
        sys.stdout.flush()
    if chosen.command == "data" and place is not None and place.rank > 0:
        return 0  # one worker measures; several would measure each other
    if chosen.command in ("request", "export"):
        from conveyor.dialects.serving import run as serve

        return serve(chosen)
    return run_command(chosen.arguments())


def run_command(words: Sequence[str]) -> int:
    """Run one of our own commands: the words after `conveyor`."""
    from conveyor import commands
    from conveyor.options.parser import Parser

    module = commands.load(words[0])
    parser: argparse.ArgumentParser = Parser(prog=f"conveyor {words[0]}")
    module.add_arguments(parser)
    code = module.run(parser.parse_args(list(words[1:])))
    assert isinstance(code, int)
    return code


def with_folder(translation: Translation, environment: Mapping[str, str]) -> Translation:
    """The same with the run folder's name filled in, alike in every worker of one job."""
    if not translation.folder or translation.options.run.run_dir is not None:
        return translation
    # Our launcher's number stays the same when a job is started again; the port does not.
    job = environment.get("CONVEYOR_JOB", "") or "".join(
        environment.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")
    )
    number = zlib.crc32(job.encode()) if job else int.from_bytes(os.urandom(4), "big")
    letters = "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(3))
    stamp = letters if job else time.strftime("%Y%m%d-%H%M%S")
    folder = translation.folder.replace("{random}", letters).replace("{time}", stamp)
    return dataclasses.replace(translation, options=translation.options.replace(run_dir=folder))


def dry_run(translation: Translation) -> int:
    """Print the plan; with --json one object on standard output. Nothing is contacted, no data are read."""
    notes = list(translation.notes)
    plan: dict[str, Any] = {}
    text = ""
    if translation.command != "average":
        from conveyor.training.describe import describe
        from conveyor.training.spec import resolve

        spec = resolve(planned_options(translation, notes))
        plan, text = spec.to_json(translation.command), describe(spec)
        notes += [note for note in spec.notes if note not in notes]
    plan = {**plan, "notes": notes, "command": translation.text()}
    if translation.json:
        print(json.dumps(plan, indent=1))
        return 0
    print(translation.text())
    for note in notes:
        print(f"note: {note}")
    print("\n".join(line for line in text.splitlines() if not line.startswith(("note ", "command "))))
    return 0


def planned_options(translation: Translation, notes: list[str]) -> Options:
    """What a run would use: for a stored run its own options, if it is there already."""
    path = translation.options.run.checkpoint_path
    if path is None or translation.command not in ("restore", "validate"):
        return translation.options
    if not Path(path).exists():
        notes.append(f"{path} does not exist yet: the plan shows the options of this command alone")
        return translation.options
    if translation.command == "restore":
        from conveyor.commands.restore import restored_options

        return restored_options(Path(path), {})
    from conveyor.commands.validate import stored

    kept = stored(Path(path), missing_ok=True)
    return translation.options if kept is None else kept.updated(translation.options.changed())
