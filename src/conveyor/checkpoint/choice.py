"""Which checkpoint of a run is meant: `best`, `last` or an update; the same words and one default everywhere. No torch."""

import json
from pathlib import Path

from conveyor.errors import UserError
from conveyor.files import read_object, write_atomically
from conveyor.monitor.csvfile import read_rows

CHECKPOINTS = "checkpoints"
MANIFEST, STATE, MODEL = "manifest", "state.json", "model.safetensors"
BEST_FILE, EXPORT = "best.json", "export.json"
BEST, LAST = "best", "last"
DEFAULT = LAST
"""What `serve`, `load`, `export`, `request` take, and the report shows, by default."""


def find(path: Path, which: str | None = None) -> Path:
    """The checkpoint that `which` (default: the last) means in the run, folder of checkpoints or checkpoint `path`.

    best: of the best validation (accuracy, or what `--best-by` says) among those that are kept. Whether a checkpoint is whole is found on loading.
    """
    if (path / MANIFEST).is_file():
        if which is not None:
            raise UserError(f"{path} is one checkpoint: leave out --checkpoint {which}, or give the run that it is of")
        return path
    there = _complete(path)
    if not there:
        raise UserError(
            f"there is no complete model in {path}: give a run with a checkpoint, a checkpoint or an export"
        )
    numbered = [entry for entry in there if is_numbered(entry)]
    if (which or DEFAULT) == LAST:
        return (numbered or there)[-1]
    wanted = which
    if which == BEST:
        known = read_best(path)
        if known is None:
            raise UserError(f"no checkpoint of {path} was validated, so none is the best: use --checkpoint {LAST}")
        wanted = str(known[0])
    found = next((entry for entry in there if entry.name == wanted), None)
    if found is None:
        names = ", ".join(entry.name for entry in there)
        asked = f"the best checkpoint, {wanted}," if which == BEST else f"a checkpoint {wanted}"
        raise UserError(f"{path} does not hold {asked}: choose --checkpoint {BEST}, {LAST} or one of {names}")
    return found


def text(checkpoint: Path) -> str:
    """`checkpoint 132 of digits, the last (98.61 %); the best is 88 (98.89 %): --checkpoint best`."""
    run = run_of(checkpoint)
    if run is None:
        return f"checkpoint {checkpoint.name}"
    best, accuracies = read_best(run), _accuracies(run)
    numbered = [entry.name for entry in _complete(run) if is_numbered(entry)]
    is_best = best is not None and str(best[0]) == checkpoint.name
    is_last = numbered[-1:] == [checkpoint.name]
    roles = [role for role, holds in ((f"the {LAST}", is_last), (f"the {BEST}", is_best)) if holds]
    accuracy = best[1] if best is not None and is_best else accuracies.get(checkpoint.name)
    said = f"checkpoint {checkpoint.name} of {run.name}"
    said += f", {' and '.join(roles)}" if roles else ""
    said += f" ({accuracy:.2f} %)" if accuracy is not None else " (not validated)"
    if best is not None and not is_best and str(best[0]) in numbered:
        said += f"; the {BEST} is {best[0]} ({best[1]:.2f} %): --checkpoint {BEST}"
    return said


def run_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint belongs to, when there is one."""
    parent = checkpoint.resolve().parent
    return parent.parent if parent.name == CHECKPOINTS else None


def read_best(run: Path) -> tuple[int, float] | None:
    """(update, accuracy in percent) of the best validated checkpoint, if the run has validated one."""
    known = read_object(run / BEST_FILE)
    try:
        return int(known["update"]), float(known["accuracy"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def write_best(run: Path, update: int, accuracy: float, by: str = "accuracy", score: float | None = None) -> None:
    """Remember a validated checkpoint, so that it is kept, if its `score` in the figure `by` is the best so far."""
    score, document = accuracy if score is None else score, read_object(run / BEST_FILE)
    known = document.get("score", document.get("accuracy"))
    # A run that goes on by another figure begins to choose anew.
    if not isinstance(known, int | float) or document.get("by", "accuracy") != by or score > known:
        content = {"update": update, "accuracy": accuracy, "by": by, "score": score}
        write_atomically(run / BEST_FILE, json.dumps(content).encode())


def listing(parent: Path | str) -> list[Path]:
    """The checkpoints in a run or in a folder of checkpoints: by ascending update, averaged ones last."""
    parent = Path(parent)
    inner = parent / CHECKPOINTS
    entries = list((inner if inner.is_dir() else parent).iterdir()) if parent.is_dir() else []
    found = [entry for entry in entries if not entry.name.startswith(".") and is_checkpoint(entry)]
    return sorted(found, key=lambda entry: (0, int(entry.name), "") if is_numbered(entry) else (1, 0, entry.name))


def is_checkpoint(folder: Path) -> bool:
    """Whether `folder` looks like a checkpoint, complete or not; an export for PyTorch has a file of the same name."""
    there = folder.is_dir() and not (folder / EXPORT).exists()
    return there and any((folder / name).exists() for name in (MANIFEST, STATE, MODEL))


def is_numbered(checkpoint: Path) -> bool:
    """Whether a checkpoint is named by its update, as those that training saves are."""
    return checkpoint.name.isdecimal()


def _complete(path: Path) -> list[Path]:
    """Those of `listing` whose last file, the manifest, is there."""
    return [entry for entry in listing(path) if (entry / MANIFEST).is_file()]


def _accuracies(run: Path) -> dict[str, float]:
    """Validation accuracy by the name of the checkpoint."""
    found: dict[str, float] = {}
    for row in read_rows(run / "validation.csv"):
        try:
            found[row.get("name") or row["update"]] = float(row["accuracy"])
        except (KeyError, ValueError):
            continue
    return found
