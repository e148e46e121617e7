"""Kill a training run again and again: `python -m tests.run.kills FOLDER KILLS SEED [CHANGES]`, one JSON object on stdout.

CHANGES are options as JSON.

A warm process forks a child for each life of a run, so that importing PyTorch is paid once. It never computes anything
itself: no thread of a library is running when it forks.
"""

import contextlib
import importlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from conveyor.checkpoint import folder as one
from conveyor.checkpoint import store
from conveyor.options import Options
from conveyor.run import worker
from conveyor.spec import resolve

CHANGES: dict[str, Any] = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}


def options_for(run: Path) -> Options:
    """A run that saves after every update, with everything in its state: momentum, average, loss scale, dropout of samples."""
    options = Options().replace(
        run_dir=str(run), resume="auto", model="resnet8", micro_batch_size=8, accumulation=2, updates=20,
        updates_per_epoch=6, updates_per_checkpoint=1, updates_per_log=5, checkpoints_to_keep=2, epochs_per_validation=1,
        max_validation_images=20, learning_rate=0.05, ema_decay=0.9, loss_scale="auto", clip_norm=1.0, quiet=True,
        layout="1x1", threads=1, tensorboard=False, report=False,
    )  # fmt: skip
    return options.replace(**CHANGES)


def live(run: Path, modules: Path | None = None) -> int:
    """Fork a child that trains in `run` to its end; `modules` is told what it had to import."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            worker.run(resolve(options_for(run)))
        if modules is not None:
            modules.write_text(json.dumps(sorted(sys.modules)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(child: int) -> bool:
    """Whether the child has ended by itself, well."""
    found, status = os.waitpid(child, os.WNOHANG)
    if found and status:
        raise RuntimeError(f"a run failed with status {status}")
    return bool(found)


def newest_complete(run: Path) -> int:
    """The newest checkpoint; every one that is visible must be complete."""
    updates = [0]
    for path in store.listing(run):
        one.verify(path)
        if store.is_numbered(path):
            updates.append(int(path.name))
    return max(updates)


def kill_until_done(run: Path, kills: int, generator: random.Random, longest: float) -> tuple[int, int]:
    """Kill lives of `run` at random moments; (kills made, lives that began from a checkpoint)."""
    made = resumed = reached = 0
    while made < kills:
        child = live(run)
        resumed += reached > 0
        moment = time.monotonic() + generator.uniform(0.0, longest)
        while time.monotonic() < moment:
            if ended(child):
                return made, resumed
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        made += os.WIFSIGNALED(status)
        now = newest_complete(run)
        assert now >= reached, f"checkpoint {reached} was there before the kill, {now} is the newest after it"
        reached = now
    finish(run)
    return made, resumed


def finish(run: Path, modules: Path | None = None) -> float:
    """Let the run end; seconds."""
    started = time.monotonic()
    child = live(run, modules)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"a run failed with status {status}"
    return time.monotonic() - started


def main(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill runs until `kills` kills are made, and compare each with the run that was never killed."""
    torch.set_num_threads(1)
    generator = random.Random(seed)
    reference = folder / "reference"
    finish(reference, folder / "modules.json")
    for name in json.loads((folder / "modules.json").read_text()):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    seconds = finish(folder / "timed")
    expected = one.load(reference / store.CHECKPOINTS / "20")
    made = resumed = runs = 0
    different: list[str] = []
    while made < kills:
        run = folder / f"run-{runs}"
        new, old = kill_until_done(run, kills - made, generator, 0.5 * seconds)
        made, resumed, runs = made + new, resumed + old, runs + 1
        found = one.load(run / store.CHECKPOINTS / "20")
        for group, tensors in expected.groups().items():
            for name, tensor in tensors.items():
                if not torch.equal(tensor, found.groups()[group][name]):
                    different.append(f"{run.name}: {group} {name}")
        for name in ("loss_scale", "last_accuracy", "meter"):
            if expected.progress[name] != found.progress[name]:
                different.append(f"{run.name}: {name}")
        losses = [rows(path / "metrics.csv", ("update", "loss", "accuracy", "lr")) for path in (reference, run)]
        if losses[0] != losses[1]:
            different.append(f"{run.name}: metrics.csv")
    return {"kills": made, "runs": runs, "resumed": resumed, "different": different, "seconds": seconds}


def rows(path: Path, columns: tuple[str, ...]) -> list[list[str]]:
    """Some columns of a CSV file."""
    import csv

    with path.open(newline="") as file:
        return [[row[column] for column in columns] for row in csv.DictReader(file)]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
