"""`conveyor predict`: the classes that a trained model predicts for photographs."""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conveyor.errors import UserError, did_you_mean
from conveyor.files import make_parent, write_atomically
from conveyor.infer import ENGINES
from conveyor.infer.asked_precision import AskedPrecision, add_infer_precision, asked_precision
from conveyor.monitor.progress import printable, say, say_aside, track
from conveyor.options.parser import add, add_checkpoint, count

if TYPE_CHECKING:
    from conveyor.infer.loaded import Loaded
    from conveyor.infer.predict import Picture, Prediction

HELP = "Classify photographs with a run, a checkpoint or an export."
SOME_UNREADABLE = 1
MEASURED_FROM = 512
"""Images from which on measuring the engines (`--engine auto`) takes less time than it saves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN|EXPORT", help="A run, a checkpoint or an export.")
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="Image files, folders, patterns such as '*.jpg', or - for standard input: an image, or names of files.",
    )
    add_checkpoint(parser)
    add(parser, "--top", 5, "N", "Most probable classes to tell.", count)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="A JSON list on standard output instead of a table.")
    form.add_argument("--csv", metavar="FILE", help="Write a CSV file instead of a table; - for standard output.")
    fewer = f"auto: PyTorch for fewer than {MEASURED_FROM} images, else the fastest of {', '.join(ENGINES[1:])}."
    add(parser, "--engine", "auto", "NAME", fewer)
    add_infer_precision(parser)
    add(parser, "--data-dir", str, "DIR", "Images for --infer-precision, when not where the run had them.")
    parser.add_argument("--quiet", action="store_true", help="No progress bar, no word on the checkpoint.")


def run(arguments: argparse.Namespace) -> int:
    """0: every image was answered; 1: some could not be read, and were named."""
    if arguments.engine not in ENGINES:
        raise UserError(f"there is no engine {arguments.engine!r}{did_you_mean(arguments.engine, ENGINES)}")
    pictures = _pictures(arguments.paths)  # before the model is loaded: a mistake should cost no time
    if arguments.csv not in (None, "-"):
        make_parent(arguments.csv)
    from conveyor.infer.load import load

    loaded = load(arguments.model, arguments.checkpoint)
    if (chosen := loaded.spec.get("chosen")) and not arguments.quiet:
        say_aside(chosen)
    found = _answers(loaded, pictures, arguments.engine, asked_precision(arguments), quiet=arguments.quiet)
    if not arguments.json and arguments.csv is None:
        found = _printed(found, loaded, [name for name, _ in pictures], arguments.top)
    kept: list[dict[str, Any]] = []
    bad, keeps = 0, arguments.json or arguments.csv is not None
    several = loaded.thresholds is not None
    for one in found:
        kept += [one.to_json(arguments.top)] if keeps else []
        if one.error:
            bad += 1
            say_aside(f"conveyor: cannot read {one.file}: {one.error}")
    if arguments.json:
        print(json.dumps(kept, indent=1))
    table = _csv(kept, min(arguments.top, loaded.num_classes), several=several) if arguments.csv is not None else ""
    if arguments.csv == "-":
        print(table, end="")
    elif arguments.csv is not None:
        try:
            write_atomically(Path(arguments.csv), table)
        except OSError as error:
            raise UserError(f"cannot write {arguments.csv}: {error.strerror}") from None
        say(f"written to {arguments.csv}")
    if bad:
        say_aside(f"conveyor: {bad} of {len(pictures)} could not be read")
    return SOME_UNREADABLE if bad else 0


def _pictures(paths: list[str]) -> "list[tuple[str, Picture]]":
    from conveyor.infer.predict import find_files

    found: dict[str, Picture] = {}
    for path in paths:
        if path != "-":
            found |= {file: file for file in find_files([path])}
        elif isinstance(given := _standard_input(), bytes):
            found["-"] = given
        else:
            found |= {file: file for file in find_files(given)}
    if not found:
        raise UserError("no image was named on standard input")
    return list(found.items())


def _standard_input() -> bytes | list[str]:
    """An image, or else the names of files, one on each line."""
    from conveyor.data.photo.decode import BadImageError, Encoded

    content = sys.stdin.buffer.read()
    try:
        Encoded(content)
        return content
    except BadImageError:
        pass
    try:
        return [line for line in content.decode().splitlines() if line.strip()]
    except UnicodeDecodeError:
        return content


def _answers(
    loaded: "Loaded", pictures: "list[tuple[str, Picture]]", engine: str, precision: AskedPrecision, *, quiet: bool
) -> "Iterator[Prediction]":
    from conveyor.infer.engines.engine import open_engine
    from conveyor.infer.precision import fit
    from conveyor.infer.predict import BATCH, predictions
    from conveyor.layout import usable_cores

    batch, threads = loaded.batch or min(BATCH, len(pictures)), usable_cores()
    if precision.infer_precision is None:
        if engine == "auto" and loaded.module is not None and len(pictures) < MEASURED_FROM:
            engine = "torch"
        opened = open_engine(loaded, engine, batch)
    else:
        fitted = fit(loaded, precision, batch=batch, threads=threads, engine=engine, say=say_aside)
        for note in fitted.notes:
            say_aside(note)
        opened = fitted.open(batch=batch, threads=threads)
    try:
        with track(len(pictures), "Predict", quiet=quiet) as bar:
            for one in predictions(pictures, loaded, opened, batch):
                bar.advance()
                yield one
    finally:
        opened.close()


def _printed(found: "Iterator[Prediction]", loaded: "Loaded", names: list[str], top: int) -> "Iterator[Prediction]":
    """Print each result as a table row as soon as it is there; yields them unchanged.

    Of the less probable classes a row holds those that fit the terminal (80 columns without one); --json has all.
    """
    file_width = max(len("file"), *(len(name) for name in names))
    label_width = max(len("label"), *(len(loaded.label(index)) for index in range(loaded.num_classes)))
    columns = shutil.get_terminal_size().columns
    title = f"{'file':<{file_width}}  {'label':<{label_width}}  {'%':>6}"
    title += "  next" if top > 1 and len(title) + 6 <= columns else ""
    if loaded.thresholds is not None:
        title = f"{'file':<{file_width}}  labels above their thresholds, %"
    for one in found:
        if not one.error:
            if title:  # with the first row: of unreadable files there is none
                say(title, whole=True)
                title = ""
            label = f"({one.label}?)" if one.abstains else one.label
            if one.labels is not None:
                known = one.probabilities
                named = ", ".join(f"{label} {100 * known[label]:.1f}" for label in one.labels)
                say(printable(f"{one.file:<{file_width}}  {named or '(none)'}"), whole=True)
                yield one
                continue
            line = printable(f"{one.file:<{file_width}}  {label:<{label_width}}  {100 * one.probability:>6.2f}")
            for place, (other, probability) in enumerate(one.top(top)[1:]):
                longer = f"{line}{', ' if place else '  '}{other} {100 * probability:.1f}"
                if len(longer) > columns:
                    break
                line = longer
            say(line, whole=True)
        yield one


def _csv(rows: list[dict[str, Any]], top: int, *, several: bool) -> str:
    """One line for each file: with `several` the labels (a;b), the best classes and their probabilities, or the error."""
    from conveyor.monitor.csvfile import csv_text

    ranks = [f"{kind}{'' if rank == 0 else f'_{rank + 1}'}" for rank in range(top) for kind in ("label", "probability")]
    lines: list[list[Any]] = [["file", *(["labels"] if several else []), *ranks, "error"]]
    for row in rows:
        values = [value for one in row.get("top", []) for value in (one["label"], one["probability"])]
        labels = [";".join(one["label"] for one in row.get("labels", []))] if several else []
        lines.append([row["file"], *labels, *(values or [""] * len(ranks)), row.get("error", "")])
    return csv_text(lines)
