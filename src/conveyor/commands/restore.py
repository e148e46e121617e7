"""`conveyor restore`: go on with a run from its newest complete checkpoint."""

import argparse
from pathlib import Path

from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.options.parser import add_checkpoint, add_options, add_run

HELP = "Go on with a stored run, to its stored end, with its stored options."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from conveyor.commands.train import add_dry_run

    add_dry_run(parser)
    add_checkpoint(parser)
    add_options(parser)
    add_run(parser, "The run to go on with (its newest complete checkpoint), or one checkpoint.")


def run(arguments: argparse.Namespace) -> int:
    given = dict(getattr(arguments, "given", None) or {})
    path = given.pop("checkpoint_path", None)
    if path is None:
        raise UserError(
            "say what to go on with: conveyor restore RUN (its newest complete checkpoint) or one checkpoint"
        )
    from conveyor.checkpoint import choice
    from conveyor.commands.train import dry_run, execute

    if arguments.checkpoint is not None:
        found = choice.find(Path(path), arguments.checkpoint)
        path = path if arguments.checkpoint == choice.LAST else found  # a last one that is damaged is passed over
    options = restored_options(Path(path), given)
    if arguments.dry_run:
        return dry_run(options, as_json=arguments.json, plot=arguments.plot, command="restore", named=given)
    if options.run.checkpoint_path is not None and not options.run.json_logs:
        print(f"the run goes on from {options.run.checkpoint_path} in a folder of its own: {options.run.run_dir}")
    return execute(options, named=given)


def restored_options(path: Path, overrides: dict[str, object]) -> Options:
    """The stored options, set up to go on from `path`: in the run's own folder if its newest checkpoint is meant."""
    from conveyor.checkpoint import store
    from conveyor.checkpoint.folder import load_without_tensors, verify
    from conveyor.data.identity import check_stored
    from conveyor.run import folder
    from conveyor.run.stored_options import overridden, stored_options

    found = store.locate(path)
    run_folder = found.run
    if not found.single and not any(store.is_numbered(entry) for entry in found.checkpoints):
        if not (path / folder.OPTIONS).exists():
            store.existing(path)
        # Nothing was saved yet: begin again with the same options.
        return overridden(folder.read_options(path), overrides).replace(run_dir=str(path), resume="auto")
    checkpoint, state = store.load_newest(path, load_without_tensors)
    if found.single:
        verify(checkpoint)  # the one that was asked for: no other may take its place
    options = overridden(stored_options(run_folder, state.options), overrides)
    check_stored(options.data, state.progress)
    saved = [] if run_folder is None else store.numbered(run_folder)
    newer = [entry for entry in saved if int(entry.name) > state.update]
    elsewhere = (
        "run_dir" in overrides and run_folder is not None and Path(str(overrides["run_dir"])).resolve() != run_folder
    )
    if run_folder is not None and not (found.single and newer) and not elsewhere:
        return options.replace(run_dir=str(run_folder), resume="auto", checkpoint_path=None)
    # An older checkpoint, or another folder: what is there stays untouched, the run branches off.
    if not found.single:
        checkpoint, state = store.load_newest(path)
    if "run_dir" not in overrides:
        home = run_folder or path.resolve()
        options = options.replace(run_dir=str(home.with_name(f"{home.name}-from-{state.update}")))
    return options.replace(checkpoint_path=str(checkpoint), resume="no")
