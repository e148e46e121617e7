"""`conveyor sweep`: search options with Optuna, over runs of one or more seeds; table and page."""

import argparse
import json
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.options.parser import count

HELP = "Search options with Optuna: random, grid or TPE, over paired seeds; a killed sweep goes on."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.yml", help="options, search, method, trials, seeds, metric, prune, out.")
    parser.add_argument("--trials", type=count, metavar="N", help="Instead of the file's number.")
    parser.add_argument("--report-only", action="store_true", help="The table and the page of what is there.")


def run(arguments: argparse.Namespace) -> int:
    import dataclasses

    from conveyor.launch import sweep as search

    sweep = search.Sweep.read(Path(arguments.file))
    if arguments.trials is not None and sweep.method == "grid":
        raise UserError(
            f"--trials {arguments.trials}: a grid tries every combination; shorten the lists of values under search"
        )
    changed = {"trials": arguments.trials} if arguments.trials is not None else {}
    if arguments.report_only:
        changed["trials"] = 0
    sweep = dataclasses.replace(sweep, **changed)
    study = search.run(sweep, say=lambda line: print(line, flush=True))
    lines, context = summary(sweep, study)
    print("\n".join(lines))
    from conveyor.files import write_atomically
    from conveyor.report.page import fill

    write_atomically(sweep.out / "sweep.html", fill(context))
    print(f"written to {sweep.out / 'sweep.html'}")
    return 0


def summary(sweep: Any, study: Any) -> tuple[list[str], dict[str, Any]]:
    """The table of all trials, best first, and how sure it is that the best is better than each other one."""
    from conveyor.measure.paired import mean_and_deviation, probability_better, verdict
    from conveyor.monitor.records import score
    from conveyor.monitor.table import format_table
    from conveyor.report import cells

    trials = study.get_trials(deepcopy=False)
    # A trial that was given up has a value, too: that of its last validation; one under way may have results and none.
    finished = [one for one in trials if one.state.name == "COMPLETE"]
    done = sorted(finished, key=lambda one: (-one.value, one.number))
    unfinished = [one for one in trials if one not in finished]
    head = ["trial", *sweep.search, sweep.metric, "deviation", "best is better"]

    def tried(one: Any) -> list[Any]:
        """The trial's number and values; those of a list are kept as JSON."""
        values = map(one.params.get, sweep.search)
        return [one.number, *(json.loads(value) if isinstance(value, str) else value for value in values)]

    verdicts: list[str] = []
    rows: list[list[Any]] = []
    for place, one in enumerate([*done, *unfinished]):
        figures: list[Any] = ["given up early" if one.state.name == "PRUNED" else "not finished", "", ""]
        if place < len(done):
            results, first = (each.user_attrs["results"] for each in (one, done[0]))
            mean, deviation = mean_and_deviation(results)
            apart = [
                score({sweep.metric: a}, sweep.metric) - score({sweep.metric: b}, sweep.metric)
                for a, b in zip(first, results, strict=False)
            ]
            sure = probability_better(apart) if place else None
            if place and len(verdicts) < 3:
                verdicts.append(verdict(f"trial {done[0].number}", f"trial {one.number}", sure, len(apart)))
            spread = "" if deviation is None else f"{deviation:.4f}"
            figures = [round(mean, 6), spread, "" if sure is None else f"{100 * sure:.1f} %"]
        rows.append([*tried(one), *figures])
    verdicts = verdicts or ["there are not two finished trials to compare"]
    title = f"Sweep of {', '.join(sweep.search)}"
    given_up = sum(one.state.name == "PRUNED" for one in unfinished)
    subtitle = f"{len(done)} trials of {sweep.seeds} seeds, {given_up} given up early, by {sweep.metric}"
    context = {
        "title": title, "subtitle": subtitle, "verdict": verdicts,
        "comparison": {"head": [(name, True) for name in head], "rows": [tuple(map(cells.text, row)) for row in rows]},
    }  # fmt: skip
    return [*format_table(head, rows, rule=False).splitlines(), *verdicts], context
