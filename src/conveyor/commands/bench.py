"""`conveyor bench`: run specifications, compare with peers in the same run, keep and compare records."""

import argparse
import contextlib
import dataclasses
import math
import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from conveyor.bench.budget import PARTS
from conveyor.errors import UserError, did_you_mean
from conveyor.options.coerce import checked
from conveyor.options.parser import add_settings, count, settings_from
from conveyor.options.units import many
from conveyor.processes import handling

if TYPE_CHECKING:
    from conveyor.bench.records import Record

HELP = "Run benchmarks, measure beside other programs, compare records."

SPECS = Path(__file__).parent.parent / "bench" / "specs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from conveyor.bench.lanes import Work
    from conveyor.bench.serving import Wanted

    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    run = actions.add_parser("run", help="run the benchmarks of a specification")
    run.add_argument("--spec", required=True, help="a file, or the name of a shipped one (see `bench list`)")
    run.add_argument("--benchmark", nargs="+", default=[], metavar="NAME", help="only these")
    run.add_argument("--small", action="store_true", help="the size that a laptop finishes")
    run.add_argument("--repeats", type=count, default=1, help="runs of each case [1]")
    _add_out(run)

    actions.add_parser("list", help="list the shipped specifications and their benchmarks")

    compare = actions.add_parser("compare", help="say whether two records differ beyond the noise")
    compare.add_argument("before")
    compare.add_argument("after")

    peers = actions.add_parser("peers", help="measure beside other programs, in alternating rounds")
    peers.add_argument("kind", choices=("training", "inference"))
    peers.add_argument("--model", nargs="+", default=[], help="only these models")
    peers.add_argument("--batch", nargs="+", type=count, default=[], help="only these batch sizes")
    peers.add_argument("--image-size", type=count, help="another image size")
    peers.add_argument("--only", nargs="+", default=[], metavar="PEER", help="only these peers, by their names")
    peers.add_argument("--rounds", type=count, default=5, help="alternating rounds [5]; of inference: at least")
    peers.add_argument("--steps", type=count, help="of training: steps of a round; default: a few seconds")
    peers.add_argument(
        "--turn", type=_amount, default=0.1, help="of inference: seconds of a turn, one batch at least [0.1]"
    )
    peers.add_argument(
        "--minutes", type=_amount, default=1.0, help="of inference: for each batch size, filled with rounds [1]"
    )
    peers.add_argument("--threads", type=count, help="threads of each program; default: all cores")
    _add_out(peers)

    serving = actions.add_parser("serving", help="a server under load beside its engine called directly")
    serving.add_argument("path", metavar="RUN|EXPORT", help="what is served")
    add_settings(serving, Wanted, *(field.name for field in dataclasses.fields(Wanted)))
    _add_out(serving)

    lanes = actions.add_parser("lanes", help="the same update as one process, as lanes, as a pipeline")
    add_settings(lanes, Work, "model", "image_size", "micro_batch_size", "slots", "schedule", "splits")
    lanes.add_argument("--workers", type=count, metavar="N", help="lanes, or stages; default: all cores")
    lanes.add_argument("--rounds", type=count, default=5, help="alternating rounds [5]")
    lanes.add_argument("--updates", type=count, default=2, help="updates of a round [2]")
    _add_out(lanes)

    accuracy = actions.add_parser(
        "accuracy", help="record what runs of one recipe reached, and in how many core-seconds"
    )
    accuracy.add_argument("name", help="of the recipe, such as cifar10_fast")
    accuracy.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of finished runs")
    _add_out(accuracy)

    limits = actions.add_parser("limits", help="measure the float32 GEMM rate and the memory bandwidth")
    limits.add_argument("--threads", type=count, help="default: all cores")
    _add_out(limits)

    grow = actions.add_parser("grow", help="one case of how cost grows, for the specification `scaling`")
    grow.add_argument("what", help="files, classes, checkpoints or requests (a second)")
    grow.add_argument("count", type=count)

    page = actions.add_parser("page", help="write README.md and the plots from the records")
    _add_out(page)

    everything = actions.add_parser(
        "all", help="limits, peers and the growth of cost in a fixed time, then the page (`make bench`)"
    )
    everything.add_argument("--minutes", type=_amount, default=40.0, help="time for all of it [40]")
    everything.add_argument("--rounds", type=count, default=5, help="alternating rounds at most [5]")
    everything.add_argument("--threads", type=count, help="threads of each program; default: all cores")
    everything.add_argument(
        "--only", nargs="+", default=list(PARTS), choices=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    everything.add_argument("--large", action="store_true", help="of growth also what takes minutes: a million files")
    everything.add_argument("--small", action="store_true", help="tiny sizes: tries the way, measures nothing")
    _add_out(everything)


def run(arguments: argparse.Namespace) -> int:
    actions = {
        "run": _run, "list": _list, "compare": _compare, "peers": _peers, "lanes": _lanes, "limits": _limits, "page": _page,
        "all": _all, "accuracy": _accuracy, "serving": _serving, "grow": _grow,
    }  # fmt: skip
    # By default these signals kill Python at once and leave commands, servers and other programs running.
    with handling(dict.fromkeys((signal.SIGTERM, signal.SIGHUP), _leave)):
        return actions[arguments.action](arguments)


def _leave(number: int, frame: FrameType | None) -> None:
    """The end of the terminal or a job manager's signal unwinds like Ctrl-C."""
    raise SystemExit(128 + number)


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"should be a number of 0 or more, not {text!r}")
    return value


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks"), metavar="FOLDER", help="where records go [benchmarks]"
    )


def find_spec(name: str) -> Path:
    """A file as given, or a shipped specification by its name."""
    if Path(name).exists():
        return Path(name)
    shipped = {path.stem: path for path in SPECS.glob("*.yml")}
    if name.removesuffix(".yml") in shipped:
        return shipped[name.removesuffix(".yml")]
    beside = [str(path) for path in sorted(Path(name).parent.glob("*.y*ml"))]
    raise UserError(f"there is no specification {name!r}{did_you_mean(name, [*shipped, *beside])}")


def _run(arguments: argparse.Namespace) -> int:
    path = find_spec(arguments.spec)
    folder = arguments.out / "records"
    # A user's file runs in its own folder, as its commands expect; ours must not leave runs inside the package.
    scratch = tempfile.TemporaryDirectory() if path.parent == SPECS else contextlib.nullcontext(path.parent)
    with scratch as place:
        return _run_in(Path(place), path, folder.resolve(), arguments)


def _run_in(place: Path, path: Path, folder: Path, arguments: argparse.Namespace) -> int:
    from conveyor.bench import runner
    from conveyor.bench.spec import choose, read_spec
    from conveyor.files import make_parent, write_atomically
    from conveyor.monitor import progress
    from conveyor.monitor.csvfile import csv_text

    chosen = choose(read_spec(path, place), arguments.benchmark)
    total = sum(len(benchmark.cases(arguments.small)) for benchmark in chosen) * arguments.repeats
    with progress.track(total, "Benchmarks", unit="run") as bar:

        def report(outcome: runner.Outcome) -> None:
            bar.advance(1)
            progress.say(
                f"{outcome.case.name}: {outcome.failure or _metrics(outcome.metrics)} ({outcome.seconds:.1f} s)"
            )

        outcomes, _ = runner.run_all(
            chosen, small=arguments.small, folder=folder, repeats=arguments.repeats, report=report
        )
    titles, rows = runner.table(chosen, outcomes)
    _print_table(titles, rows)
    make_parent(folder / "last-run.csv")  # when no run could be started there is no folder
    write_atomically(folder / "last-run.csv", csv_text([titles, *rows]))
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed:
        print(f"{len(failed)} of {many(len(outcomes), 'run')} failed; their output is in {folder}")
    return 1 if failed else 0


def _list(arguments: argparse.Namespace) -> int:
    from conveyor.bench.spec import read_spec

    for path in sorted(SPECS.glob("*.yml")):
        print(f"{path.stem}:")
        for benchmark in read_spec(path).values():
            print(f"  {benchmark.name:<36} {benchmark.description}")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from conveyor.bench.records import compare, load_record

    before, after = load_record(arguments.before), load_record(arguments.after)
    rows = [
        [one.metric, str(one.before), str(one.after), f"{one.ratio:.3f}", one.verdict] for one in compare(before, after)
    ]
    _print_table(["quantity", "before", "after", "after / before", "verdict"], rows)
    for path, one, other in ((arguments.before, before, after), (arguments.after, after, before)):
        alone = [metric for metric in one.results if metric not in other.results]
        if alone:
            print(f"only in {path}: {', '.join(alone)}")
    return 0


def _peers(arguments: argparse.Namespace) -> int:
    from conveyor.layout import usable_cores

    arguments.threads = arguments.threads or usable_cores()
    return _training_peers(arguments) if arguments.kind == "training" else _inference_peers(arguments)


def _training_peers(arguments: argparse.Namespace) -> int:
    from conveyor.bench import training_peers
    from conveyor.bench.tables import PEER_TITLES, peers_rows
    from conveyor.monitor import progress

    settings = {setting.model: setting for setting in training_peers.SETTINGS}
    models = _known(arguments.model, list(settings))
    _known(arguments.only, training_peers.peers(arguments.threads))
    for model in models:
        setting = settings[model]
        if arguments.image_size:
            setting = dataclasses.replace(setting, image_size=arguments.image_size)
        for batch in arguments.batch or [setting.batch]:
            setting = dataclasses.replace(setting, batch=batch)
            progress.say(f"{setting.label}:")
            record = training_peers.measure(
                setting, threads=arguments.threads, rounds=arguments.rounds, steps=arguments.steps, only=arguments.only,
                report=_say_rate,
            )  # fmt: skip
            record.save(arguments.out / "records")
            _print_table(PEER_TITLES, peers_rows([record]))
    return 0


def _inference_peers(arguments: argparse.Namespace) -> int:
    from conveyor.bench import inference_peers
    from conveyor.bench.records import Record
    from conveyor.bench.tables import PEER_TITLES, peers_rows
    from conveyor.monitor import progress

    def report(record: Record) -> None:
        record.save(arguments.out / "records")
        progress.say(inference_peers.text(record))

    models = _known(arguments.model, list(inference_peers.BATCHES))
    _known(arguments.only, list(inference_peers.PEERS))
    for model in models:
        batches = arguments.batch or inference_peers.BATCHES[model]
        records = inference_peers.measure(
            model, batches, rounds=arguments.rounds, turn=arguments.turn,
            seconds=60 * arguments.minutes * len(batches), image_size=arguments.image_size or 224, threads=arguments.threads,
            only=arguments.only, report=report,
        )  # fmt: skip
        _print_table(PEER_TITLES, peers_rows(records))
    return 0


def _serving(arguments: argparse.Namespace) -> int:
    from conveyor.bench import serving
    from conveyor.monitor import progress

    wanted = checked(settings_from(serving.Wanted, arguments))
    record = serving.measure(arguments.path, wanted, progress.say)
    return _saved(arguments, record)


def _saved(arguments: argparse.Namespace, record: "Record") -> int:
    """Write a record and print its quantities."""
    record.save(arguments.out / "records")
    _print_table(["quantity", "median (spread)"], [[name, str(sample)] for name, sample in record.results.items()])
    return 0


def _known(asked: list[str], known: list[str]) -> list[str]:
    """The requested models or peers, or all; an error for an unknown one proposes the nearest name."""
    for name in asked:
        if name not in known:
            raise UserError(f"there is no comparison for {name!r}{did_you_mean(name, known)}")
    return asked or known


def _lanes(arguments: argparse.Namespace) -> int:
    from conveyor.bench.lanes import Work, measure
    from conveyor.layout import usable_cores

    work = checked(settings_from(Work, arguments))
    cores = arguments.workers or usable_cores()
    return _saved(arguments, measure(work, cores, rounds=arguments.rounds, updates=arguments.updates, report=_say_rate))


def _accuracy(arguments: argparse.Namespace) -> int:
    from conveyor.bench import time_to_accuracy

    record = time_to_accuracy.collect(arguments.name, arguments.runs)
    record.save(arguments.out / "records")
    _print_table(time_to_accuracy.TITLES, [time_to_accuracy.row(record)])
    return 0


def _say_rate(name: str, number: int, rate: float) -> None:
    from conveyor.monitor import progress

    progress.say(f"  round {number + 1}: {name} {rate:.2f} img/s")


def _limits(arguments: argparse.Namespace) -> int:
    from conveyor.bench.limits import measure
    from conveyor.layout import usable_cores

    return _saved(arguments, measure(arguments.threads or usable_cores()))


def _grow(arguments: argparse.Namespace) -> int:
    from conveyor.bench.growing import measure

    print(_metrics(measure(arguments.what, arguments.count)))
    return 0


def _page(arguments: argparse.Namespace) -> int:
    from conveyor.bench.page import write_page

    print(f"wrote {write_page(arguments.out, _readme(arguments.out))}")
    return 0


def _readme(folder: Path) -> Path | None:
    """The project's README beside the benchmark folder, if it has a place for the table."""
    from conveyor.bench.page import BEGIN

    path = folder.resolve().parent / "README.md"
    return path if path.is_file() and BEGIN in path.read_text(encoding="utf-8") else None


def _all(arguments: argparse.Namespace) -> int:
    from conveyor.bench.bench_all import Plan, measure
    from conveyor.layout import usable_cores
    from conveyor.monitor import progress

    plan = Plan(
        arguments.out, arguments.threads or usable_cores(), arguments.rounds, progress.say, arguments.small, arguments.only,
        arguments.large,
    )  # fmt: skip
    for line in measure(plan, arguments.minutes):
        print(f"left out: {line}")
    return _page(arguments)


def _metrics(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _print_table(titles: list[str], rows: list[list[str]]) -> None:
    from conveyor.monitor.table import format_table

    print(format_table(titles, rows))
