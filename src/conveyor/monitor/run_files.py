"""The names that a run writes in its folder: what is deleted with it, and what is no class of images there."""

from fnmatch import fnmatchcase
from pathlib import Path

LOCK = ".lock"
OPTIONS = "options.yml"
# fmt: off
_NAMES = (
    LOCK, OPTIONS, "spec.json", "result.json", "log.txt", "metrics.csv", "training.csv", "validation.csv",
    "validation-[0-9]*.csv", "best.json", "timing.json", "timeline-[0-9]*.json", "confusion.json", "labels.json",
    "calibration.json", "report.html", "comparison.html", "wandb-id.txt",
    "checkpoints", "tensorboard", "mistakes", "right", "augmented", "profile", "wandb",
)
# fmt: on


def is_run_file(name: str) -> bool:
    """Whether a run, or a report of it, writes a file or folder of this name in the run folder."""
    return any(fnmatchcase(name, pattern) for pattern in _NAMES)


def others(folder: Path) -> list[str]:
    """The names in a run folder that are not the run's, sorted."""
    return sorted(entry.name for entry in folder.iterdir() if not is_run_file(entry.name))


def some(names: list[str], most: int = 3) -> str:
    """The first `most` of `names`, as text."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
