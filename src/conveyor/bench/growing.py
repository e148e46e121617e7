"""One case of how cost grows, for the specification `scaling`: so many files, classes, checkpoints or requests a second.

Commands of ours run in processes of their own; their processor time (user and system) and peak memory are the system's
account of them, so that other load on the machine changes little.
"""

import dataclasses
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from conveyor.errors import UserError
from conveyor.monitor.observers import METRICS_FILE_VARIABLE, JsonLines
from conveyor.processes import of_module

PICTURE_SIDE = 32
LINKS = 50_000
"""Names of one file at most; ext4 allows 65,000."""
CLASSES = 100
"""Class folders among which files are divided."""
CLIENTS, LOAD_SECONDS = 8, 4.0
SAVES = 5
"""Checkpoints of which the mean is taken."""
UNVALIDATED = ["--no-validation", "--no-report"]
TRAIN = [
    "train", "--image-size", "32", "--micro-batch-size", "8", "--layout", "1x1", "--threads", "1", "--no-tensorboard", "--quiet",
]  # fmt: skip


class Cost(NamedTuple):
    """Of one process with all that it started and waited for."""

    cpu_seconds: float
    peak_mib: float


def measure(what: str, count: int) -> dict[str, float]:
    """The metrics of a case, also for `conveyor bench run` if that started this process."""
    if what not in MEASURES:
        raise UserError(f"growth of {what!r} is not measured: choose {', '.join(MEASURES)}")
    with tempfile.TemporaryDirectory(prefix="conveyor-growth-") as folder:
        found = MEASURES[what](count, Path(folder))
    if METRICS_FILE_VARIABLE in os.environ:
        JsonLines(file=os.environ[METRICS_FILE_VARIABLE]).end(found)
    return found


def files(count: int, folder: Path) -> dict[str, float]:
    """A run on a folder of `count` files, up to its first update."""
    make_class_folders(folder / "data" / "train", count, min(CLASSES, count))
    make_class_folders(folder / "data" / "validation", CLASSES, min(CLASSES, count))
    words = ["--model", "cifar_resnet8", "--updates", "1", "--checkpoints-per-epoch", "0"]
    cost = run([*TRAIN, *UNVALIDATED, *words, "--data-dir", str(folder / "data"), "--run-dir", str(folder / "run")])
    return {"start_cpu_seconds": cost.cpu_seconds, "start_mib": cost.peak_mib}


def classes(count: int, folder: Path) -> dict[str, float]:
    """A run on `count` class folders with one image for training and one for validation each, then its report.

    With a small network, so that what grows is the last layer and everything that has to do with classes.
    """
    for split in ("train", "validation"):
        make_class_folders(folder / "data" / split, count, count)
    target = folder / "run"
    words = ["--model", "cifar_resnet8", "--data-dir", str(folder / "data"), "--updates", "2", "--run-dir", str(target)]
    train = run([*TRAIN, *words])
    return {
        "run_cpu_seconds": train.cpu_seconds,
        "run_mib": train.peak_mib,
        "report_kib": (target / "report.html").stat().st_size / 1024,
        "checkpoint_kib": sum(file.stat().st_size for file in (target / "checkpoints" / "2").iterdir()) / 1024,
    }


def checkpoints(count: int, folder: Path) -> dict[str, float]:
    """With `count` checkpoints of one run: to save one more, to list the run, to go on from the newest."""
    import time

    from conveyor.checkpoint import folder as one
    from conveyor.checkpoint import store

    target = folder / "run"
    run([*TRAIN, *UNVALIDATED, "--model", "resnet8", "--updates", "1", "--run-dir", str(target)])
    _, state = store.load_newest(target)

    def save(update: int) -> None:
        path = target / store.CHECKPOINTS / str(update)
        one.save(path, dataclasses.replace(state, progress={**state.progress, "update": update}))

    for update in range(2, count + 1):
        save(update)
    listed = run(["runs", str(folder)])
    begun = time.process_time()
    for update in range(count + 1, count + SAVES + 1):
        save(update)
        store.prune(target, count)  # as a run does that keeps so many
    saved = (time.process_time() - begun) / SAVES
    length = str(count + SAVES + 1)
    went_on = run(["restore", str(target), "--updates", length, "--quiet", *UNVALIDATED])
    return {
        "save_cpu_ms": 1000 * saved,
        "list_cpu_ms": 1000 * listed.cpu_seconds,
        "restore_cpu_ms": 1000 * went_on.cpu_seconds,
        "restore_mib": went_on.peak_mib,
    }


def requests(rate: int, folder: Path) -> dict[str, float]:
    """A server of a small network that is sent `rate` requests of one image a second, over HTTP on loopback."""
    from conveyor.bench import serving

    target = folder / "run"
    run([*TRAIN, *UNVALIDATED, "--model", "resnet8", "--updates", "1", "--run-dir", str(target)])
    ready = folder / "server.json"
    command = of_module(
        "conveyor", "serve", str(target), "--port", "0", "--grpc-port", "0", "--poll", "0", "--ready-file", str(ready)
    )
    with serving.server(command, ready) as (address, process):
        load = serving.run_clients(address, process, "http", CLIENTS, LOAD_SECONDS, rate)
    if load.failures:
        raise UserError(f"{len(load.failures)} requests failed, the first: {load.failures[0]}")
    used = load.server_cpu + load.engine_cpu
    return {
        "request_p50_ms": load.latency_p50,
        "request_p99_ms": load.latency_p99,
        "request_cpu_ms": 1000 * used / load.requests,
        "answered_per_second": load.images_per_second,
    }


MEASURES: dict[str, Callable[[int, Path], dict[str, float]]] = {
    "files": files, "classes": classes, "checkpoints": checkpoints, "requests": requests,
}  # fmt: skip


def run(words: list[str]) -> Cost:
    """A command of ours to its end; its output is shown only if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != METRICS_FILE_VARIABLE}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(of_module("conveyor", *words), stdout=output, stderr=output, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            last = output.read().decode(errors="replace").strip().splitlines()[-1:]
            raise UserError(f"`conveyor {' '.join(words[:2])}` ended with {process.returncode}: {' '.join(last)}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def make_class_folders(root: Path, count: int, num_classes: int) -> None:
    """`count` names of JPEG files in `num_classes` folders; few pictures have all the names, so that no disk is filled."""
    pictures = [_picture(number) for number in range(max(16, -(-count // LINKS)))]
    originals: list[Path] = []
    for number in range(num_classes):
        (root / f"class{number:05d}").mkdir(parents=True)
    for number in range(count):
        path = root / f"class{number % num_classes:05d}" / f"image{number:07d}.jpg"
        if number < len(pictures):
            path.write_bytes(pictures[number])
            originals.append(path)
        else:
            os.link(originals[number % len(pictures)], path)


def _picture(seed: int) -> bytes:
    import io

    import numpy as np
    from PIL import Image

    draw: Any = np.random.default_rng(seed)
    coarse = Image.fromarray(draw.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    data = io.BytesIO()
    coarse.resize((PICTURE_SIDE, PICTURE_SIDE), Image.Resampling.BICUBIC).save(data, "JPEG", quality=90)
    return data.getvalue()
