"""`conveyor average`: the average of a run's checkpoints as one more checkpoint."""

import argparse
from pathlib import Path

from conveyor.errors import UserError
from conveyor.monitor.progress import say
from conveyor.options.parser import count
from conveyor.options.units import many

HELP = "Average checkpoints: the mean of the last ones, or exponential."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="A run, or a folder of checkpoints.")
    parser.add_argument("--checkpoint-path", metavar="RUN", help="The same.")
    parser.add_argument("--mode", choices=("mean", "exponential"), default="mean", help="How to average [mean].")
    parser.add_argument("--last", type=count, metavar="N", help="Only the last N checkpoints; default: all.")
    parser.add_argument(
        "--decay", type=float, help="Of an exponential one: V = decay V + (1 - decay) next, oldest first [0.99]."
    )
    parser.add_argument("--discard-last", action="store_true", help="Leave the newest checkpoint out.")
    parser.add_argument(
        "--out",
        "--output",
        dest="output",
        metavar="FOLDER",
        help="Where the average goes; default: beside the checkpoints.",
    )
    parser.add_argument(
        "--recompute-statistics",
        type=int,
        metavar="BATCHES",
        help="Take the batch-norm statistics anew, from so many micro-batches of the training data.",
    )
    parser.add_argument("--validation", action="store_true", help="Validate the average afterwards.")
    parser.add_argument("--quiet", action="store_true", help="Print results and errors only.")


def run(arguments: argparse.Namespace) -> int:
    from conveyor.run.averages import average_folder

    path = arguments.run or arguments.checkpoint_path
    if path is None:
        raise UserError("say whose checkpoints to average: conveyor average RUN")
    decay = 0.99 if arguments.decay is None else arguments.decay
    if not 0 <= decay < 1:
        raise UserError(f"--decay {decay:g} is not between 0 and 1")
    if arguments.decay is not None and arguments.mode == "mean":
        raise UserError(f"--decay {decay:g} is not for a mean: add --mode exponential, or leave it out")
    written, names = average_folder(
        Path(path),
        decay=decay if arguments.mode == "exponential" else None,
        last=arguments.last,
        discard_last=arguments.discard_last,
        output=Path(arguments.output) if arguments.output else None,
        statistics_batches=arguments.recompute_statistics,
    )
    if not arguments.quiet:
        say(f"average of {many(len(names), 'checkpoint')} ({', '.join(names)}) written to {written}")
    if not arguments.validation:
        return 0
    from conveyor.commands.validate import execute, stored

    options = stored(written)
    assert options is not None
    return execute(options.replace(checkpoint_path=str(written), quiet=arguments.quiet))
