"""`conveyor train`: train a network, or with --dry-run print what would be done."""

import argparse
import contextlib
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from conveyor.errors import UserError
from conveyor.monitor.progress import say_aside
from conveyor.options import Options
from conveyor.options.parser import add_config, add_options, named_by_user, options_from
from conveyor.remote import is_address
from conveyor.remote.mirror import nearby, typed

HELP = "Train a network; without any option a small one on the embedded digits."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_dry_run(parser)
    add_options(parser)


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Flags that look at a run without starting it."""
    parser.add_argument("--dry-run", action="store_true", help="Print the plan and stop; no data are needed.")
    parser.add_argument("--json", action="store_true", help="With --dry-run: one JSON object.")
    parser.add_argument("--plot", metavar="FILE", help="With --dry-run: a picture of the rate.")


def run(arguments: argparse.Namespace) -> int:
    options, named = options_from(arguments), named_by_user(arguments)
    if arguments.json and not arguments.dry_run:
        raise UserError("--json belongs to --dry-run; for JSON log lines during training use --json-logs")
    if options.run.resume == "auto" and options.run.run_dir is None and not _is_in_job():
        say_aside("note: --resume auto begins a new run: give the --run-dir of the one to go on with")
    if arguments.dry_run:
        return dry_run(options, as_json=arguments.json, plot=arguments.plot, named=named)
    if options.data.folds is not None and options.data.fold is None and options.events.training:
        return _folds(options, named)
    return execute(options, named)


def _is_in_job() -> bool:
    """Whether a launcher started this process: then the run folder may be named after its job."""
    from conveyor.launch.rank import detect

    return detect(os.environ) is not None


def _folds(options: Options, named: Collection[str]) -> int:
    """A run for each fold, then the summary."""
    from conveyor.run import folds

    base, runs = folds.runs(options)
    code = execute(runs[0], named, runs[1:]) if runs else 0
    count = options.data.folds or 0
    if code == 0 and all(folds.last_validation(base / f"fold-{fold}") for fold in range(count)):
        print(folds.summary(base, count))
    return code


def dry_run(
    options: Options,
    *,
    as_json: bool = False,
    plot: str | None = None,
    command: str = "train",
    named: Collection[str] = (),
) -> int:
    """Print what `options` mean, if a run could start with them. Standard output holds the JSON object alone.

    Of workers that a launcher started the first one talks, of the layout that they will have.
    """
    from conveyor.launch.rank import detect
    from conveyor.monitor.progress import say
    from conveyor.run.describe import describe, plot_schedule
    from conveyor.run.preflight import check_start
    from conveyor.spec import resolve

    if (place := detect(os.environ)) is None:
        spec = resolve(options)
    else:
        from conveyor.launch.run_job import machine_of, under_launcher

        options = under_launcher(options, os.environ)
        spec = resolve(options, workers=place.size, machine=machine_of(options, place, os.environ))
    if options.events.training or options.model.weights is not None:
        check_start(spec, named)
    if place is not None and place.rank > 0:
        return 0
    if plot is not None:
        plot_schedule(spec, plot)
    if as_json:
        print(json.dumps(spec.to_json(command), indent=1))
        return 0
    for line in describe(spec).splitlines():
        say(line, whole=line.startswith("command "))  # which is copied
    return 0


def execute(options: Options, named: Collection[str] = (), after: Sequence[Options] = ()) -> int:
    """Train (or, with --no-training, only validate); returns the exit code. `named` are the options the user gave.

    `after` are further runs, each begun in the same workers when the one before is done; their folders are named.
    """
    if not options.events.training:
        from conveyor.commands import validate

        validate.say_random(options)
        return validate.execute(options)
    from conveyor.checkpoint.choice import listing
    from conveyor.launch.run_job import start
    from conveyor.run import folder as rundir
    from conveyor.run.preflight import check_names
    from conveyor.training.stopping import Reason

    result = start(options, after=after, check=lambda spec: check_names(spec, named))
    if not result:
        return 0
    for folder in dict.fromkeys((*(one.run.run_dir for one in (options, *after) if after), result["folder"])):
        if folder is None or not rundir.holds_run(Path(folder)):
            continue
        if options.run.report:
            _write_report(folder)
        if not options.run.json_logs:
            _say(folder, f"run folder: {nearby(folder)}")
    if not options.run.json_logs and not options.run.quiet and result["reason"] == Reason.DONE:
        folder, near, word = result["folder"], nearby(result["folder"]), typed(result["folder"])
        looked = [f"next: look at {folder if is_address(near) else near}/report.html"] if options.run.report else []
        saved = bool(listing(Path(folder)))
        _say(
            folder,
            *looked,
            *([f"next: conveyor predict {word} PHOTO", f"next: conveyor serve {word}"] if saved else []),
        )
    return 128 + int(result["signal"]) if result["signal"] is not None and result["reason"] == Reason.INTERRUPTED else 0


def _write_report(folder: str) -> None:
    from conveyor.report.page import write_report

    try:
        write_report([folder])
    except (UserError, OSError) as problem:
        # The run itself is complete: a page about it can be made at any time.
        _say(folder, f"note: no report.html ({problem}); try conveyor report {typed(folder)}")


def _say(folder: str, *lines: str) -> None:
    """Lines after the run's own; they stand in its log too. Not folded: they are copied."""
    from conveyor.monitor.observers import append_log

    print("\n".join(lines))
    # A log that cannot be written is no reason to fail now: the run is complete.
    with contextlib.suppress(OSError):
        append_log(Path(folder), lines)
