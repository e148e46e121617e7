"""The names that the older programs gave their checkpoints, as paths of ours.

| name | meaning |
|---|---|
| `MODEL_DATA_3.pt` | after epoch 3 |
| `ckpt-120`, `ckpt-120.index` | after update 120 |
| `epoch_1.5`, `epoch_1.5.h5` | after epoch 1.5 |
| `MODEL_DATA_averaged.pt`, `weight_avg_N_5`, `weight_avg_exp_0.97` | averages |
"""

import re
from pathlib import Path

from conveyor.errors import UserError
from conveyor.files import read_object

UPDATE = re.compile(r"ckpt-(\d+)(\.(index|meta|data-.*))?")
EPOCH = re.compile(r"(?:epoch_(\d+(?:\.\d+)?)(?:\.h5)?|.+_(\d+)\.pt)")
AVERAGE = re.compile(r"(?:.+_averaged\.pt|weight_avg_(N|exp)_([\d.]+)(\.index)?)")
CLOSE = 1e-3
"""Epochs: names are rounded."""


def checkpoint_path(path: str) -> str:
    """`path`, or the checkpoint of ours that is meant by a name of the older programs in a run folder of ours."""
    wanted = Path(path)
    if wanted.exists() or not wanted.name:
        return path
    run = next((folder for folder in (wanted.parent, wanted.parent.parent) if (folder / "checkpoints").is_dir()), None)
    if run is None:
        return path
    if wanted.name in ("ckpt", "checkpoints"):
        return str(run)
    saved = sorted((entry for entry in (run / "checkpoints").iterdir() if (entry / "state.json").is_file()), key=_order)
    if match := UPDATE.fullmatch(wanted.name):
        return _chosen(path, saved, [entry for entry in saved if entry.name == match[1]])
    if match := AVERAGE.fullmatch(wanted.name):
        name = f"average-{'last' if match[1] == 'N' else 'exponential'}-{match[2]}" if match[1] else ""
        averages = [entry for entry in saved if entry.name.startswith("average-")]
        return _chosen(path, saved, [entry for entry in averages if not name or entry.name == name])
    if match := EPOCH.fullmatch(wanted.name):
        epoch = float(match[1] or match[2])
        numbered = [entry for entry in saved if entry.name.isdecimal()]
        return _chosen(path, saved, [entry for entry in numbered if abs(_epoch(entry) - epoch) < CLOSE])
    return path


def _chosen(path: str, saved: list[Path], fitting: list[Path]) -> str:
    if fitting:
        return str(fitting[-1])
    there = ", ".join(f"{entry.name} (epoch {_epoch(entry):g})" for entry in saved[-4:]) or "none"
    raise UserError(
        f"there is no checkpoint for {path}: the run has {there}{', and older ones' if len(saved) > 4 else ''}"
    )


def _epoch(checkpoint: Path) -> float:
    try:
        return float(read_object(checkpoint / "state.json")["progress"]["epoch"])
    except (ValueError, KeyError, TypeError):
        return -1.0


def _order(checkpoint: Path) -> tuple[int, str]:
    return (int(checkpoint.name), "") if checkpoint.name.isdecimal() else (1 << 62, checkpoint.name)
