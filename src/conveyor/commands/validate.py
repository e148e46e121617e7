"""`conveyor validate`: the accuracy of a checkpoint, of all checkpoints of a run, or of plain weights."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.infer.asked_precision import AskedPrecision, add_infer_precision, asked_precision
from conveyor.monitor.progress import say, say_aside
from conveyor.monitor.table import format_table
from conveyor.options import Options
from conveyor.options.parser import add_checkpoint, add_config, add_options, add_run, options_from
from conveyor.options.validation import notes_about, typed_flag

HELP = "Validate a checkpoint, every checkpoint of a run, or plain weights."
RUN = "conveyor.run.validate_run:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from conveyor.commands.train import add_dry_run

    add_config(parser)
    add_dry_run(parser)
    add_checkpoint(parser, default="all of them")
    add_infer_precision(parser, default="that of the run's training")
    add_options(parser)
    add_run(parser, "A run (all its checkpoints), a checkpoint, or a file of weights.")


def run(arguments: argparse.Namespace) -> int:
    from conveyor.commands.train import dry_run
    from conveyor.run.stored_options import with_plain_weights

    given = dict(getattr(arguments, "given", None) or {})
    path = given.get("checkpoint_path")
    if given.get("answers") is not None:
        from conveyor.evaluate.answers import check_target

        check_target(str(given["answers"]))
        if asked_precision(arguments).infer_precision is not None:
            raise UserError("--answers has those of the run's own precision: leave out --infer-precision")
    if arguments.checkpoint is not None or (given.get("answers") is not None and path is not None):
        # A file of answers has those of one model.
        path = arguments.given["checkpoint_path"] = str(_chosen(path, arguments.checkpoint))
    options = options_from(arguments, None if path is None else stored(Path(path))).replace(training=False)
    if not arguments.dry_run and not getattr(arguments, "told", False):
        say_random(options, as_json=arguments.json)
    for note in notes_about((typed_flag(name, value), (name,)) for name, value in given.items()):
        say_aside(f"note: {note}")
    if arguments.dry_run:
        return dry_run(with_plain_weights(options), as_json=arguments.json, plot=arguments.plot, command="validate")
    wanted = asked_precision(arguments)
    if wanted.infer_precision is None:
        return execute(options, as_json=arguments.json)
    from conveyor.infer.validated import unread

    if flags := unread(given, options):
        say_aside(f"note: {', '.join(flags)}: no effect with --infer-precision, which answers as the run's exports do")
    return execute(options, as_json=arguments.json, wanted=wanted)


def _chosen(path: str | None, which: str | None) -> Path:
    """The checkpoint to validate; its name is printed on standard error, as standard output holds the figures."""
    from conveyor.checkpoint import choice

    if path is None:
        raise UserError(f"--checkpoint {which} chooses one of a run: name the run with --checkpoint-path")
    found = choice.find(Path(path), which)
    say_aside(choice.text(found))
    return found


def stored(path: Path) -> Options | None:
    """The options of the run that a checkpoint belongs to; None for plain weights."""
    from conveyor.run.stored_options import is_weights_file, options_for_validation

    return None if is_weights_file(path) else options_for_validation(path)


def say_random(options: Options, *, as_json: bool = False) -> None:
    """Print a first line when random weights are validated; once, however many workers there are."""
    from conveyor.infer import measure_speed
    from conveyor.launch.rank import detect
    from conveyor.spec import random_weights

    place = detect(os.environ)
    sentence = random_weights(options)
    if sentence is not None and not measure_speed.applies(options) and (place is None or place.rank == 0):
        (say_aside if as_json or options.run.json_logs else say)(sentence)


def execute(options: Options, *, as_json: bool = False, wanted: AskedPrecision | None = None) -> int:
    """Validate, print one table, write validation.csv; returns the exit code.

    With `wanted` the engine of that precision computes the answers, as it would when served.
    """
    from conveyor.infer import measure_speed
    from conveyor.run.stored_options import with_plain_weights

    options = with_plain_weights(options.replace(training=False))
    if measure_speed.applies(options):
        return _speed_only(options, as_json=as_json or options.run.json_logs, wanted=wanted)
    from conveyor.launch.run_job import start
    from conveyor.run.preflight import check_start

    if wanted is not None:
        from conveyor.infer import validated

        records = validated.records(options, wanted, say=say_aside)
    else:
        # Weights that do not fit are refused before any worker is started and any image is looked for.
        records = start(options, run=RUN, check=check_start if options.model.weights is not None else None)
    if not records:
        return 0
    quiet = as_json or options.run.json_logs
    print(json.dumps(records) if quiet else table(records), flush=True)  # before a folder that cannot be written
    written = write_csv(options, records)
    _write_for_benchmarks(records)
    if not quiet:
        if options.events.answers is not None:
            say(f"answers written to {options.events.answers}")
        say(f"written to {written}")
        if len({record["name"] for record in records}) > 1 and options.run.checkpoint_path is not None:
            from conveyor.checkpoint import choice

            say(f"note: serve, load and export take {choice.text(choice.find(Path(options.run.checkpoint_path)))}")
    return 0


def _speed_only(options: Options, *, as_json: bool, wanted: AskedPrecision | None) -> int:
    """Measure the speed only, as generated images have no accuracy: the fastest engine, repeats, latencies."""
    from conveyor.infer.measure_speed import measure_options

    quiet = as_json or options.run.quiet
    measured, records = measure_options(
        options,
        precision=None if wanted is None else wanted.infer_precision,
        say=lambda line: None if quiet else say(line),
    )
    write_csv(options, records)
    _write_for_benchmarks(records, measured.latency.fields())
    if as_json:
        print(json.dumps(records))
        return 0
    say(measured.note)
    print("\n".join(measured.lines()))
    return 0


def _write_for_benchmarks(records: Sequence[Mapping[str, Any]], overall: Mapping[str, float] | None = None) -> None:
    """One JSON line per validation, and what holds for all of them, into the file that `conveyor bench run` reads."""
    from conveyor.monitor.observers import METRICS_FILE_VARIABLE, JsonLines

    if METRICS_FILE_VARIABLE not in os.environ:
        return
    lines = JsonLines(file=os.environ[METRICS_FILE_VARIABLE])
    for record in records:
        lines.validation(record)
    lines.end(overall or {})


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """One line per validation."""
    columns = {
        "checkpoint": "{name}", "epoch": "{epoch:.2f}", "top-1 %": "{accuracy:.2f}", "top-5 %": "{accuracy_top5:.2f}",
        "mAP %": "{map:.2f}", "F1 %": "{f1:.2f}", "micro F1": "{f1_micro:.2f}", "loss": "{loss:.4f}", "images": "{images}",
        "img/s": "{images_per_second:.1f}", "latency ms": "{latency_avg_ms:.2f}", "99 %": "{latency_p99_ms:.2f}",
    }  # fmt: skip
    # Among five classes or fewer the right one is always one of five; F1 is shown where an image has several labels.
    absent = {
        "accuracy_top5": ["top-5 %"],
        "map": ["mAP %", "F1 %", "micro F1"],
        "latency_avg_ms": ["latency ms", "99 %"],
    }
    for title in (title for name, titles in absent.items() if name not in records[0] for title in titles):
        del columns[title]
    return format_table(
        list(columns), [[form.format_map(record) for form in columns.values()] for record in records], rule=False
    )


def write_csv(options: Options, records: Sequence[Mapping[str, Any]]) -> Path:
    """validation.csv in a folder of its own: a run's own file belongs to its training."""
    import time

    from conveyor.files import make_parent, why
    from conveyor.monitor.csvfile import CsvFile
    from conveyor.monitor.records import VALIDATION_COLUMNS

    folder = Path(options.run.run_dir or f"runs/validation-{time.strftime('%Y%m%d-%H%M%S')}")
    path = folder / "validation.csv"
    number = 2
    while path.exists():
        path = folder / f"validation-{number}.csv"
        number += 1
    file = CsvFile(path, VALIDATION_COLUMNS, "update")
    try:
        make_parent(path)
        file.open(float("inf"))
        for record in records:
            file.append(record)
    except OSError as problem:
        raise UserError(f"cannot write {path}: {why(problem)}; choose another --run-dir") from None
    return path
