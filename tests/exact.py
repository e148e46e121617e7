"""Two runs compared file by file, without tolerance; times and the layout aside."""

import csv
import json
from pathlib import Path

TENSORS = ("model.safetensors", "optimizer.safetensors", "averages.safetensors")
TIMES = {"images_per_second", "update_seconds", "seconds", "data_wait", "memory_mib", "peak_share"}
SHOWN = ("confusion.json", "labels.json", "calibration.json", "mistakes/*", "right/*", "augmented/*")
"""What the report shows of the images: the same however the validation set was dealt to workers."""
ELSEWHERE = {"layout", "timing", "stopping", "job", "restarts", "updates_repeated"}
"""Of a checkpoint's state: where it ran, how long that took, and what happened on the way."""


def differences(one: Path, other: Path, told: frozenset[str] = frozenset()) -> list[str]:
    """What differs between two run folders; nothing if they are the same run.

    `told` are entries of a checkpoint's state that hold options in which the runs differ on purpose.
    """
    found = []
    names = [sorted(path.name for path in run.glob("checkpoints/*") if path.name.isdigit()) for run in (one, other)]
    if names[0] != names[1]:
        found.append(f"checkpoints {names[0]} and {names[1]}")
        names[0] = []
    for number in names[0]:
        for name in TENSORS:
            files = [run / "checkpoints" / number / name for run in (one, other)]
            present = [path.exists() for path in files]
            if present[0] != present[1] or (all(present) and files[0].read_bytes() != files[1].read_bytes()):
                found.append(f"{number}/{name}")
        states = [_state(run / "checkpoints" / number / "state.json", ELSEWHERE | told) for run in (one, other)]
        if states[0] != states[1]:
            found.append(f"{number}/state.json")
    for name in ("metrics.csv", "validation.csv"):
        rows = [_rows(run / name) for run in (one, other)]
        if rows[0] != rows[1]:
            found.append(name)
    shown = [
        {str(path.relative_to(run)): path.read_bytes() for form in SHOWN for path in run.glob(form)}
        for run in (one, other)
    ]
    return found + sorted(
        name for name in shown[0].keys() | shown[1].keys() if shown[0].get(name) != shown[1].get(name)
    )


def _state(path: Path, without: set[str]) -> dict[str, object]:
    return {key: value for key, value in json.loads(path.read_text())["progress"].items() if key not in without}


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: value for key, value in row.items() if key not in TIMES} for row in csv.DictReader(file)]
