"""`make bench`: limits, every comparison and how cost grows, within a fixed time, then the page.

Each part has a share of the time. What does not fit is left out and named on the page; a part that fails is named too
and the rest goes on.
"""

import os
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conveyor.bench import inference_peers, runner, training_peers
from conveyor.bench.budget import PARTS, Budget
from conveyor.bench.limits import measure as measure_limits
from conveyor.bench.page import LEFT_OUT
from conveyor.bench.peer_programs import environment
from conveyor.bench.records import Record, Sample, make_record
from conveyor.bench.spec import read_spec
from conveyor.errors import UserError
from conveyor.layout import usable_cores
from conveyor.measure.rounds import NO_TIME, in_turn
from conveyor.processes import of_module

SETTING_SECONDS = 45.0
"""The least seconds for which the programs of a setting are started."""
CASE_SECONDS = 25.0
SCALING, LARGE = (Path(__file__).parent / "specs" / f"{name}.yml" for name in ("scaling", "scaling_large"))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: the size, the folder of the records, and where progress is reported."""

    folder: Path
    threads: int
    rounds: int
    say: Callable[[str], None]
    small: bool = False
    """Tiny networks and images, to test that the benchmarks run, not how fast."""
    parts: Sequence[str] = ()
    """Those to run; all, if empty."""
    large: bool = False
    """The cases of growth that take long too."""

    @property
    def records(self) -> Path:
        return self.folder / "records"


def measure(plan: Plan, minutes: float) -> list[str]:
    """Run the parts; returns sentences about what was left out or failed."""
    shares = {name: share for name, share in PARTS.items() if name in (plan.parts or PARTS)}
    budget, started = Budget(60 * minutes, shares), time.monotonic()
    troubles: list[str] = []
    for name in shares:
        seconds = budget.begin(name)
        plan.say(f"{name}: up to {seconds / 60:.1f} min")
        try:
            RUN[name](plan, budget)
        except UserError as error:  # a part must not end the others
            troubles.append(f"{name}: {error}")
        except Exception as error:
            plan.say("".join(traceback.format_exception(error)))
            troubles.append(f"{name}: failed with {type(error).__name__}: {error}")
    left_out = [*troubles, *budget.left_out]
    taken = (time.monotonic() - started) / 60
    make_record("bench-all", {"time": Sample("min", (taken,))}, **{LEFT_OUT: left_out}).save(plan.records)
    return left_out


def limits(plan: Plan, budget: Budget) -> None:
    measure_limits(plan.threads, 1 if plan.small else plan.rounds).save(plan.records)


def training(plan: Plan, budget: Budget) -> None:
    """Each training setting in its share of the part's time; the last ones are left out if that is too short."""
    settings = (training_peers.Setting("resnet8", 16, 4, 10),) if plan.small else training_peers.SETTINGS
    fitting = max(1, int(budget.left() // SETTING_SECONDS))
    for number, setting in enumerate(settings):
        left = max(1, min(len(settings), fitting) - number)
        if number and not budget.allows(setting.label, SETTING_SECONDS):
            continue
        record = training_peers.measure(
            setting, threads=plan.threads, rounds=plan.rounds, seconds=budget.left() / left,
            report=lambda name, number, rate: plan.say(f"  round {number + 1}: {name} {rate:.2f} img/s"),
        )  # fmt: skip
        path = record.save(plan.records)
        late = [name for name, why in record.conditions["absent"].items() if why == NO_TIME]
        budget.left_out += [f"training: {setting.label} of {name}" for name in late]
        plan.say(f"  {path.name}")


def inference(plan: Plan, budget: Budget) -> None:
    """Every batch size of each model's published list, as far as the time goes."""
    size, models = (32, ["resnet50"]) if plan.small else (224, list(inference_peers.BATCHES))
    programs = 1 + len(inference_peers.PEERS)

    def report(record: Record) -> None:
        record.save(plan.records)
        plan.say(f"  {inference_peers.text(record)}")

    for number, model in enumerate(models):
        batches = [1, 4] if plan.small else [batch for batch in inference_peers.BATCHES[model] if batch <= 64]
        # Two rounds of every batch, at about 1/10 s an image; a minute to start the programs.
        least = 60 + sum(2 * programs * batch / 10 for batch in batches)
        if number and not budget.allows(f"inference of {model}", least):
            continue
        seconds = 0.0 if plan.small else budget.left() / (len(models) - number)
        inference_peers.measure(
            model, batches, rounds=2, seconds=seconds, prepare_seconds=60.0, image_size=size, threads=plan.threads,
            report=report,
        )  # fmt: skip


def growth(plan: Plan, budget: Budget) -> None:
    """The `scaling` specification, case by case, as far as the time goes; what is left of it goes to more rounds."""

    def report(outcome: runner.Outcome) -> None:
        plan.say(f"  {outcome.case.name}: {outcome.failure or 'ok'} ({outcome.seconds:.1f} s)")

    with tempfile.TemporaryDirectory() as place:
        paths = [SCALING, LARGE] if plan.large else [SCALING]
        benchmarks = [one for path in paths for one in read_spec(path, Path(place)).values()]
        series = runner.all_series(benchmarks[:1] if plan.small else benchmarks, small=True)
        with runner.recorded(series, plan.records, small=True):
            for one in series:
                if budget.allows(one.case.name, 0.0 if plan.small else CASE_SECONDS):
                    one.run(plan.records, report)
            repeat(series, budget, 2 if plan.small else plan.rounds, lambda one: one.run(plan.records, report))
    failed = [outcome for one in series for outcome in one.outcomes if not outcome.ok]
    budget.left_out += [f"growth: {outcome.case.name} failed: {outcome.failure}" for outcome in failed]


def repeat(series: Sequence[runner.Series], budget: Budget, rounds: int, run: Callable[[runner.Series], None]) -> None:
    """Rounds after the first one, as long as they fit.

    The rows of a table are compared with each other, so a benchmark is repeated as a whole or not at all; the quickest
    ones come first, as most rows get a spread that way. Every other round runs backwards.
    """
    tables: dict[str, list[runner.Series]] = {}
    for one in series:
        if one.ok and one.outcomes:
            tables.setdefault(one.case.benchmark, []).append(one)

    def seconds(members: Sequence[runner.Series]) -> float:
        return sum(max(outcome.seconds for outcome in one.outcomes) for one in members)

    for number in range(1, rounds):
        for members in sorted(tables.values(), key=seconds):
            if seconds(members) <= budget.left():
                for one in in_turn(members, number):
                    if one.ok:
                        run(one)


def data(plan: Plan, budget: Budget) -> None:
    """The loaders on photographs made for the purpose: `conveyor data bench --peers`."""
    count, rounds = (16, 1) if plan.small else (512, plan.rounds)
    with tempfile.TemporaryDirectory() as folder:
        make_photographs(Path(folder), count)
        python, env = environment("data")
        command = of_module("conveyor", "data", "bench", "--peers", "--data-dir", folder, python=python)
        command += ["--images", str(count), "--rounds", str(rounds), "--micro-batch-size", str(min(64, count))]
        _succeed([*command, "--out", str(plan.records)], budget.left(), env)


def make_photographs(folder: Path, count: int) -> None:
    """JPEG files of 500 x 375 with the smooth areas and edges of photographs, from a fixed seed."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = smooth + rng.normal(0, 6, smooth.shape).astype(np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number:04d}.jpg", quality=90)


def serving(plan: Plan, budget: Budget) -> None:
    """A server under load, compared with its engine called directly and with a plain FastAPI server if installed."""
    from conveyor.bench import serving as servers

    model, data, size = ("cifar_resnet8", "cifar10", 32) if plan.small else ("resnet50", "imagenet", 224)
    with tempfile.TemporaryDirectory() as folder:
        run, path, onnx = f"{folder}/run", Path(folder) / model, Path(folder) / "onnx"
        conveyor = of_module("conveyor")
        one_update = (
            f"train --model {model} --data {data} --generated-data --image-size {size} --updates 1 --micro-batch-size 2 "
            "--layout 1x1 --no-validation --no-report --quiet --run-dir"
        ).split()
        _succeed([*conveyor, *one_update, run], budget.left())
        _succeed([*conveyor, "export", run, "--format", "torch", "--out", str(path)], budget.left())
        _succeed([*conveyor, "export", run, "--format", "onnx", "--out", str(onnx)], budget.left())
        # Ours and perhaps a plain server take a turn each; a minute for starting them and the direct engine.
        turn = 2.0 if plan.small else max(5.0, min(60.0, (budget.left() - 60) / 2))
        wanted = servers.Wanted(
            clients=4 if plan.small else 32, seconds=turn, direct_seconds=min(15.0, turn), rounds=1,
            onnx=str(onnx / "model.onnx"),
        )  # fmt: skip
        record = servers.measure(str(path), wanted, plan.say)
    record.save(plan.records)


def _succeed(command: Sequence[str], seconds: float, env: Mapping[str, str] | None = None) -> str:
    """What a command prints; an error with the end of its output if it fails."""
    limit = max(60.0, seconds)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env={**os.environ, **(env or {})})
    except subprocess.TimeoutExpired:
        raise UserError(f"`{' '.join(command[2:5])}` took more than {limit:.0f} s: give more --minutes") from None
    if done.returncode:
        raise UserError((done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1])
    return done.stdout


def lanes(plan: Plan, budget: Budget) -> None:
    """The same update as one process, as lanes and as a pipeline."""
    from conveyor.bench.lanes import Work
    from conveyor.bench.lanes import measure as measure_layouts

    work = Work("cifar_resnet8", 32, 2, 4) if plan.small else Work()
    # Half a minute to start the three jobs, and about as long for a round of one update.
    rounds = max(2, min(plan.rounds, int((budget.left() - 30) / 25)))
    measure_layouts(work, usable_cores(), rounds=rounds, updates=1).save(plan.records)


RUN = {part.__name__: part for part in (limits, training, inference, data, serving, lanes, growth)}
