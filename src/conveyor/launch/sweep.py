"""A search over options with Optuna: trials of one or more seeds each, every run a program of its own. No torch here.

Everything is in the sweep's folder: `journal.log` (Optuna's storage, written line by line) and a run folder for each
trial and seed. A sweep that was killed goes on: its unfinished trial continues, its runs by `--resume auto`. What a trial
tries depends on the trials before it and the seed of the sweep alone.
"""

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from conveyor.errors import UserError, did_you_mean, first_line
from conveyor.files import write_atomically
from conveyor.monitor.csvfile import read_rows
from conveyor.monitor.records import score
from conveyor.options import Options, specs
from conveyor.options.coerce import checked, to_plain
from conveyor.options.field import option
from conveyor.options.file import read_mapping
from conveyor.options.run import METRICS
from conveyor.processes import of_module
from conveyor.run.folds import is_done, last_validation

POLL = 0.2
BOUNDS = ("low", "high", "log", "step")
OWN = {
    "seed": "give seeds: N, and each trial is run with the seeds 0 to N - 1",
    "run_dir": "give out: FOLDER, in which each run has one of its own",
    "resume": "a sweep that is started again goes on by itself",
    "best_by": "give metric",
}
"""Options that a sweep gives to its runs itself, and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What the YAML file of a sweep says."""

    options: dict[str, Any]
    search: dict[str, Any]
    """By option: a list of values, or {low, high} with `log: true` or `step`."""
    out: Path
    method: str = option("tpe", "How trials are chosen.", choices=("tpe", "random", "grid"))
    trials: int = option(20, "Trials in all.", minimum=1)
    seeds: int = option(1, "Runs of each trial.", minimum=1)
    metric: str = option("accuracy", "A figure of validation.", choices=METRICS)
    prune: bool = option(False, "Give trials up that are behind after some validations of their first seed.")
    seed: int = option(0, "Of the search.", minimum=0)

    @classmethod
    def read(cls, path: Path) -> "Sweep":
        """From a file; every mistake is found before the first run."""
        given, keys = read_mapping(path), [field.name for field in fields(cls)]
        for key in given:
            if key not in keys:
                raise UserError(f"{path}: a sweep has no {key!r}{did_you_mean(str(key), keys)}")
        named = {"options": given.get("options") or {}, "search": given.get("search") or {}}
        try:
            found = checked(cls(**{**given, **named, "out": Path(str(given.get("out") or f"runs/{path.stem}"))}))
        except UserError as error:
            raise UserError(f"{path}: {str(error).removeprefix('--')}") from None
        if not isinstance(found.options, dict):
            raise UserError(f"{path}: options should hold 'name: value' lines, not {found.options!r}")
        if not found.search or not isinstance(found.search, dict):
            raise UserError(
                f"{path} searches nothing: under search, give options with a list of values or low and high"
            )
        for name in (*found.options, *found.search):
            if (own := OWN.get(str(name))) is not None:
                raise UserError(f"{path}: {name} is the sweep's own: {own}")
        for name, space in found.search.items():
            if name not in specs():
                raise UserError(f"{path}: there is no option {name!r}{did_you_mean(str(name), list(specs()))}")
            bounds = space if isinstance(space, dict) else {}
            if not (isinstance(space, list) and space) and not {"low", "high"} <= bounds.keys():
                raise UserError(f"{path}: {name} needs a list of values, or low and high")
            for key in bounds.keys() - BOUNDS:
                raise UserError(f"{path}: {name} has no {key!r}{did_you_mean(str(key), BOUNDS)}")
            if found.method == "grid" and bounds:
                raise UserError(f"{path}: a grid needs a list of values for {name}")
            for value in space if isinstance(space, list) else (bounds["low"], bounds["high"]):
                Options.from_mapping({**found.options, name: value}, where=str(path))
        return found

    def value_of(self, trial: Any, name: str) -> Any:
        """What `trial` tries for an option."""
        space = self.search[name]
        if isinstance(space, list):
            # Optuna compares choices by value, and lists have none: each is one text of JSON.
            return json.loads(trial.suggest_categorical(name, [json.dumps(value) for value in space]))
        whole = isinstance(space["low"], int) and isinstance(space["high"], int)
        suggest = trial.suggest_int if whole else trial.suggest_float
        extra = {key: space[key] for key in ("log", "step") if key in space}
        return suggest(name, space["low"], space["high"], **extra)


def run(sweep: Sweep, say: Callable[[str], None]) -> Any:
    """Make all trials that are still to be made; the study of Optuna."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name, space in sweep.search.items():
        first = json.dumps(space[0]) if isinstance(space, list) else space["low"]
        try:
            sweep.value_of(optuna.trial.FixedTrial({name: first}), name)
        except (ValueError, TypeError) as error:
            raise UserError(f"{name} cannot be searched so: {first_line(error)}") from None
    sweep.out.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(sweep.out / "journal.log")))
    study = optuna.create_study(study_name="sweep", storage=storage, direction="maximize", load_if_exists=True)
    _check_same(sweep, study)
    grid = list(itertools.product(*sweep.search.values())) if sweep.method == "grid" else []
    while True:
        known = study.get_trials(deepcopy=False)
        if sweep.trials == 0:  # --report-only
            return study
        open_trial = next((one for one in known if one.state == optuna.trial.TrialState.RUNNING), None)
        if open_trial is None and len(known) >= (len(grid) or sweep.trials):
            return study
        if open_trial is not None:
            where = storage.get_study_id_from_name(study.study_name), open_trial.number
            trial = optuna.trial.Trial(study, storage.get_trial_id_from_study_id_trial_number(*where))
        else:
            if grid:
                study.enqueue_trial({n: json.dumps(v) for n, v in zip(sweep.search, grid[len(known)], strict=True)})
            seed = sweep.seed + len(known)
            study.sampler = (
                optuna.samplers.TPESampler(seed=seed)
                if sweep.method == "tpe"
                else optuna.samplers.RandomSampler(seed=seed)
            )
            trial = study.ask()
        chosen = {name: sweep.value_of(trial, name) for name in sweep.search}
        study.pruner = optuna.pruners.MedianPruner(n_startup_trials=3) if sweep.prune else optuna.pruners.NopPruner()
        results = _trial(sweep, trial, chosen, say)
        said = ", ".join(f"{name} {value}" for name, value in chosen.items())
        if results is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            say(f"trial {trial.number}: {said}: given up early")
            continue
        trial.set_user_attr("results", results)
        study.tell(trial, sum(score({sweep.metric: one}, sweep.metric) for one in results) / len(results))
        say(f"trial {trial.number}: {said}: {sweep.metric} {', '.join(f'{one:.4f}' for one in results)}")


def _check_same(sweep: Sweep, study: Any) -> None:
    """Refuse to go on with a sweep whose file says something else now: its trials could not be compared."""
    names = [field.name for field in fields(sweep) if field.name not in ("out", "trials")]
    # A grid counts its points in the order in which the file has the options.
    asked = {name: json.dumps(getattr(sweep, name), sort_keys=name != "search", default=str) for name in names}
    known = study.user_attrs.get("asked")
    if known is None:
        study.set_user_attr("asked", asked)
        return
    changed = [name for name in names if known.get(name) != asked[name]]
    if changed:
        raise UserError(
            f"{sweep.out} holds a sweep with other {' and '.join(changed)}, whose trials cannot be compared with these: give "
            "another out, or remove it"
        )


def _trial(sweep: Sweep, trial: Any, chosen: Mapping[str, Any], say: Callable[[str], None]) -> list[float] | None:
    """The metric of each seed's run; None when the trial is given up after validations of its first seed."""
    results = []
    for seed in range(sweep.seeds):
        folder = sweep.out / f"trial-{trial.number:04d}" / f"seed-{seed}"
        if not is_done(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            options = Options.from_mapping({**sweep.options, **chosen, "seed": seed, "best_by": sweep.metric})
            file = folder.with_suffix(".yml")
            plain = {name: to_plain(value) for name, value in options.changed().items()}
            write_atomically(file, json.dumps({**plain, "run_dir": str(folder)}))
            if not _run(sweep, trial, file, folder, may_prune=seed == 0):
                return None
        found = last_validation(folder).get(sweep.metric)
        if found is None:
            raise UserError(f"{folder} has no {sweep.metric} of a validation: see its log.txt")
        results.append(found)
    return results


def _run(sweep: Sweep, trial: Any, file: Path, folder: Path, *, may_prune: bool) -> bool:
    """Train in a process of its own, with as many workers as its options say; whether it came to its end."""
    train = of_module("conveyor", "train", "--config", str(file), "--resume", "auto", "--quiet")
    # So that the run ends with a sweep that is killed: it would hold its folder when the sweep is begun again.
    command = of_module("conveyor.launch.pin_and_exec", *train)
    one_line = {**os.environ, "COLUMNS": "10000"}  # an error is quoted by its last line
    with (
        open(file.with_suffix(".out"), "ab") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=one_line) as job,
    ):
        try:
            told: set[int] = set()
            while job.poll() is None:
                time.sleep(POLL)
                if not (may_prune and sweep.prune):
                    continue
                for row in read_rows(folder / "validation.csv"):
                    update = row.get("update", "")
                    if not update.isdecimal() or int(update) in told or not row.get(sweep.metric):
                        continue
                    told.add(int(update))
                    trial.report(score({sweep.metric: float(row[sweep.metric])}, sweep.metric), int(update))
                if told and trial.should_prune():
                    return False
        finally:
            # Given up; or interrupted: the run saves and ends, and goes on with the sweep.
            job.terminate()
            job.wait()
    if job.returncode != 0:
        last = file.with_suffix(".out").read_text(errors="replace").strip().splitlines()[-1:]
        raise UserError(
            f"the run {folder} failed with code {job.returncode}: {' '.join(last)}; mend it and start again"
        )
    return True
