"""What a run folder must hold to be reported, and reading it. Every file but `options.yml` may be missing.

options.yml       the resolved options (flat names or sections)
spec.json         `RunSpec.to_json()`; written by `monitor.observers.RunFiles`
result.json       the end record; written by `monitor.observers.RunFiles`
metrics.csv       a row per log point, columns as `log` records in `monitor.records`
validation.csv    a row per validation, columns as `validation` records there
timing.json       {"data": seconds, "forward": ..., "backward": ..., "wait": ..., "reduce": ..., "update": ...} of the main worker
                  of the time in each phase of the whole run; further phases ("validate", "checkpoint", "start",
                  "other") are shown as well
confusion.json    of the last validation: {"classes": [names], "update": n, "matrix": [[count]]}, rows true, columns predicted;
                  or for many classes {"classes": [names], "counts": [[true, predicted, count], ...]} without the zeros
labels.json       of a multi-label model: {"classes": [names], "update": n, "thresholds": [0..1], "average_precision": [0..1 or
                  null], "counts": [[images, answers, right answers], ...]}, a value or row for each class
calibration.json  {"update": n, "bins": [[images, right answers, sum of confidences], ...]}, bins of equal width over 0..1
mistakes/         `mistakes.json`, a list of {"file": "0001.png", "label": class number, "predicted": class number,
                  "confidence": 0..1, "sample": image number, "heat": [[0..100]] (may be missing)}, most confident first,
                  and the PNG files it names, each at most 96 pixels wide; 24 of them are enough
right/            `right.json`, the same for some right answers
augmented/        `augmented.json`, a list of {"file", "sample", "update", "labels": [[class number, weight], ...]}: training
                  images as the network gets them
timeline-N.json   a list of {"worker", "stage", "slot", "phase", "start", "end"} of worker N: see `monitor.timeline`
profile/          what `monitor.profile` leaves: operators.json, layers.json, trace-<worker>.json.gz
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from conveyor.checkpoint.lock import is_held
from conveyor.errors import UserError
from conveyor.files import parse_json
from conveyor.monitor import timeline
from conveyor.monitor.csvfile import read_rows
from conveyor.options.file import read_mapping

T = TypeVar("T")
Row = dict[str, float | str]
UNREADABLE = (ValueError, OSError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What comes of a file that is damaged or holds something else."""
FILES = {
    "options": "options.yml", "spec": "spec.json", "result": "result.json", "metrics": "metrics.csv",
    "validations": "validation.csv", "timing": "timing.json", "confusion": "confusion.json", "labels": "labels.json",
    "calibration": "calibration.json", "mistakes": "mistakes/mistakes.json", "right": "right/right.json",
    "augmented": "augmented/augmented.json", "spans": "timeline*.json", "operators": "profile/operators.json",
    "layers": "profile/layers.json",
}  # fmt: skip
"""Fields of `Run`, and the files that they are read from."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """Counts of (true class, predicted class) pairs; pairs that never occurred are absent."""

    classes: list[str]
    counts: dict[tuple[int, int], int]
    update: int | None = None
    """The update whose weights it is of."""

    def totals(self) -> list[int]:
        """Images of each true class."""
        return self._sums(0)

    def predicted(self) -> list[int]:
        """Images that were predicted as each class."""
        return self._sums(1)

    def _sums(self, axis: int) -> list[int]:
        sums = [0] * len(self.classes)
        for pair, count in self.counts.items():
            sums[pair[axis]] += count
        return sums

    def recalls(self) -> list[float | None]:
        """Share of each true class that was recognised; None for a class without images."""
        return [
            self.counts.get((index, index), 0) / total if total else None for index, total in enumerate(self.totals())
        ]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Answers by their confidence, in bins of equal width over 0..1: (images, right answers, sum of confidences)."""

    bins: list[tuple[int, int, float]]
    update: int | None = None

    @property
    def images(self) -> int:
        return sum(images for images, _, _ in self.bins)

    @property
    def error(self) -> float:
        """The expected calibration error, sum over bins of n_m / n * |accuracy_m - confidence_m|, in 0..1."""
        return sum(abs(right - confidence) for _, right, confidence in self.bins) / max(1, self.images)

    @property
    def excess(self) -> float:
        """Mean confidence minus accuracy: above 0 the network is surer than it is right."""
        return sum(confidence - right for _, right, confidence in self.bins) / max(1, self.images)


@dataclass(frozen=True, slots=True)
class Example:
    """One image with the network's answer, or of training with its labels and their weights."""

    path: Path
    labels: list[tuple[int, float]]
    predicted: int = -1
    confidence: float = 0.0
    heat: list[list[int]] = field(default_factory=list)
    update: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The contents of a run folder."""

    folder: Path
    options: dict[str, Any]
    spec: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    metrics: list[Row] = field(default_factory=list)
    validations: list[Row] = field(default_factory=list)
    timing: dict[str, float] = field(default_factory=dict)
    confusion: Confusion | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    mistakes: list[Example] = field(default_factory=list)
    right: list[Example] = field(default_factory=list)
    augmented: list[Example] = field(default_factory=list)
    running: bool = False
    spans: list[timeline.Span] = field(default_factory=list)
    operators: list[dict[str, Any]] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.name

    def series(self, column: str, *, of_validation: bool = False, by: str = "epoch") -> list[tuple[float, float]]:
        """(`by`, `column`) pairs of all rows that have both as finite numbers."""
        rows = self.validations if of_validation else self.metrics
        pairs = [(row.get(by, ""), row.get(column, "")) for row in rows]
        return [(x, y) for x, y in pairs if isinstance(x, float) and isinstance(y, float) and abs(y) < float("inf")]


def read_run(folder: str | Path) -> Run:
    """Read a run folder; a file that cannot be read is an error that names it."""
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"{path} is not a run folder: give the folder that `conveyor train` printed")
    if not any((path / name).exists() for name in ("options.yml", "metrics.csv", "validation.csv")):
        raise UserError(f"{path} holds no run: neither options.yml nor metrics.csv is there")
    return Run(
        folder=path.resolve(),
        options=_yaml(path / "options.yml"),
        spec=_json(path / "spec.json", dict) or {},
        result=_json(path / "result.json", dict) or {},
        metrics=[with_numbers(row) for row in read_rows(path / "metrics.csv")],
        validations=[with_numbers(row) for row in read_rows(path / "validation.csv")],
        timing=_json(path / "timing.json", _timing) or {},
        confusion=_json(path / "confusion.json", _confusion),
        labels=_json(path / "labels.json", _labels) or {},
        calibration=_json(path / "calibration.json", _calibration),
        mistakes=_examples(path / "mistakes"),
        right=_examples(path / "right"),
        augmented=_examples(path / "augmented"),
        running=is_held(path),
        spans=_spans(path),
        operators=_json(path / "profile" / "operators.json", _dicts) or [],
        layers=_json(path / "profile" / "layers.json", _dicts) or [],
    )


def with_numbers(row: dict[str, str]) -> Row:
    """A row of a CSV file without its empty cells, its numbers as floats."""
    return {name: _number(value) for name, value in row.items() if name and value}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _spans(folder: Path) -> list[timeline.Span]:
    try:
        return timeline.read(folder)
    except UNREADABLE as error:
        raise UserError(f"{folder}/timeline*.json cannot be read ({error}): remove it to report the rest") from None


def _json(path: Path, made: Callable[[Any], T]) -> T | None:
    """What is made of the content of a JSON file; None where there is no file."""
    if not path.exists():
        return None
    try:
        return made(parse_json(path.read_text(encoding="utf-8")))
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read ({error}): remove it to report the rest") from None


def _dicts(raw: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in raw]


def _timing(raw: Any) -> dict[str, float]:
    return {str(key): float(value) for key, value in raw.items()}


def _labels(raw: Any) -> dict[str, Any]:
    return {key: raw[key] for key in ("classes", "update", "thresholds", "average_precision", "counts")}


def _yaml(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        loaded = read_mapping(path)
    except UserError as error:
        raise UserError(f"{error}; remove the file to report the rest") from None
    flat: dict[str, Any] = {}
    for key, value in loaded.items():
        if isinstance(value, dict):
            flat.update(value)
        else:
            flat[key] = value
    return flat


def _confusion(raw: Any) -> Confusion | None:
    if not raw:
        return None
    if "matrix" in raw:
        counts = {
            (truth, predicted): int(count)
            for truth, row in enumerate(raw["matrix"])
            for predicted, count in enumerate(row)
            if count
        }
    else:
        counts = {(int(truth), int(predicted)): int(count) for truth, predicted, count in raw["counts"] if count}
    return Confusion([str(name) for name in raw["classes"]], counts, raw.get("update"))


def _calibration(raw: Any) -> Calibration | None:
    if not raw:
        return None
    rows = [(int(images), int(right), float(confidence)) for images, right, confidence in raw["bins"]]
    return Calibration(rows, raw.get("update"))


def _examples(folder: Path) -> list[Example]:
    return _json(folder / f"{folder.name}.json", lambda raw: _listed(folder, raw)) or []


def _listed(folder: Path, raw: Any) -> list[Example]:
    return [
        Example(
            folder / Path(entry["file"]).name,
            [(int(label), float(share)) for label, share in entry.get("labels", [(entry.get("label"), 1.0)])],
            int(entry.get("predicted", -1)),
            float(entry.get("confidence", 0.0)),
            entry.get("heat", []),
            entry.get("update"),
        )
        for entry in raw
    ]
