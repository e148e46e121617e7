"""Results as structured records: what was measured, how often, with what spread, on which machine and commit."""

import datetime
import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.files import make_parent, parse_json, write_atomically
from conveyor.infer import AnswerPrecision
from conveyor.layout import usable_cores
from conveyor.measure.processor import processor
from conveyor.measure.remembered import version
from conveyor.version import __version__

OURS = "conveyor"
"""Our own side in every comparison."""
BEST_RATIO = "our best / the fastest other"
"""Prefix of the name of the result that compares both sides in their fastest precision."""
LOAD_BEFORE = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0
"""The machine's load when this program began; when a record is made it is the load of the measurement itself."""
LIBRARIES = ("torch", "numpy", "onnxruntime", "openvino", "simplejpeg", "pillow")


@dataclass(frozen=True, slots=True)
class Sample:
    """Repeated values of one quantity."""

    unit: str
    values: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def __str__(self) -> str:
        spread = f" ({self.low:.3g}..{self.high:.3g}, n={self.n})" if self.n > 1 else " (n=1)"
        return f"{self.median:.4g} {self.unit}{spread}"


@dataclass(frozen=True, slots=True)
class Record:
    """One benchmark's results with everything needed to judge them."""

    name: str
    results: dict[str, Sample]
    conditions: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    time: str = ""

    def to_json(self) -> str:
        """Every value, and for readers without this class what follows from them."""
        plain = asdict(self)
        for name, sample in self.results.items():
            plain["results"][name] |= {"n": sample.n, "median": sample.median, "low": sample.low, "high": sample.high}
        return json.dumps(plain, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Record":
        try:
            plain = parse_json(text)
            results = {key: Sample(value["unit"], tuple(value["values"])) for key, value in plain["results"].items()}
            if not all(sample.values for sample in results.values()):
                raise ValueError("a quantity has no values")
            return cls(plain["name"], results, plain["conditions"], plain["machine"], plain["time"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{where} is not a benchmark record: {error}") from None

    def save(self, folder: Path) -> Path:
        """Write the record under a name of its own, with its time."""
        path = folder / f"{self.name}-{self.time.replace(':', '').replace('-', '')[:15]}.json"
        make_parent(path)
        write_atomically(path, self.to_json())
        return path


def make_record(name: str, results: dict[str, Sample], **conditions: Any) -> Record:
    """A record of results measured just now, here."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Record(name, results, conditions, machine(), now)


def load_record(path: str | Path) -> Record:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the record {path}: {error}") from None
    return Record.from_json(text, str(path))


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, memory, load, versions, commit."""
    import psutil

    return {
        "processor": processor().label,
        "cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": LOAD_BEFORE,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "conveyor": __version__,
        "commit": _commit(),
        "libraries": {name: found for name in LIBRARIES if (found := version(name)) != "none"},
    }


def _commit() -> str:
    """The commit of the source tree, marked when it has uncommitted changes; empty outside a checkout.

    A package installed inside another repository (`.venv/`) counts as outside: that repository does not track it.
    """
    file = Path(__file__).resolve()

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=file.parent, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


@dataclass(frozen=True, slots=True)
class Difference:
    """How a quantity of one record compares with another's."""

    metric: str
    before: Sample
    after: Sample

    @property
    def ratio(self) -> float:
        return self.after.median / self.before.median if self.before.median else float("nan")

    @property
    def beyond_noise(self) -> bool:
        """True if the spreads do not overlap and the medians differ by more than each side's own half spread."""
        if self.untold:
            return False
        apart = self.after.low > self.before.high or self.after.high < self.before.low
        half_spread = max(self.before.high - self.before.low, self.after.high - self.after.low) / 2
        return apart and abs(self.after.median - self.before.median) > half_spread

    @property
    def untold(self) -> str:
        """Why the two cannot be compared; empty if they can."""
        if self.before.unit != self.after.unit:
            return "different units"
        if min(self.before.n, self.after.n) < 2:
            return "one value"
        if not all(math.isfinite(value) for value in (*self.before.values, *self.after.values)):
            return "not a number"
        return ""

    @property
    def verdict(self) -> str:
        if self.untold:
            return f"cannot tell ({self.untold})"
        if not self.beyond_noise:
            return "within the noise"
        # Not by the ratio: a quantity may be zero or negative.
        return f"{'higher' if self.after.median > self.before.median else 'lower'}, beyond the noise"


def compare(before: Record, after: Record) -> list[Difference]:
    """Every quantity that both records hold."""
    common = [metric for metric in before.results if metric in after.results]
    if not common:
        raise UserError(f"the records {before.name} and {after.name} have no quantity in common")
    return [Difference(metric, before.results[metric], after.results[metric]) for metric in common]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Sample:
    """Round by round ratios of two quantities measured in alternation."""
    return Sample("x", tuple(mine / other for mine, other in zip(ours, theirs, strict=True)))


def ratio(ours: Sample, other: Sample) -> Sample:
    """Round by round, over the rounds that both ran."""
    shared = min(ours.n, other.n)
    return ratios(ours.values[:shared], other.values[:shared])


def fastest(found: Mapping[str, Sample]) -> str:
    return max(found, key=lambda name: found[name].median)


def is_ours(name: str) -> bool:
    return name == OURS or name.startswith((f"{OURS} ", f"{OURS}, "))


def sides(found: Mapping[str, Sample]) -> tuple[dict[str, Sample], dict[str, Sample]]:
    """Our own programs, and the others."""
    ours = {name: sample for name, sample in found.items() if is_ours(name)}
    return ours, {name: sample for name, sample in found.items() if name not in ours}


def alike(found: Mapping[str, Sample], name: str) -> dict[str, Sample]:
    """The programs of the precision that the program called `name` has."""
    return {other: sample for other, sample in found.items() if precision_of(other) == precision_of(name)}


def precision_of(name: str) -> str:
    """Of a program, from its name; a name without one is float32."""
    return next(
        (precision for precision in (AnswerPrecision.BFLOAT16, AnswerPrecision.INT8) if precision in name),
        AnswerPrecision.FLOAT32,
    )


def share_of(limit: str, name: str) -> str:
    """The result that holds a program's share of a limit of the machine."""
    return f"{name} share of {limit}"
