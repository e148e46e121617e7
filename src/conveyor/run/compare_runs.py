"""Where two runs first differ: the first log point with other weights, the first tensor in a checkpoint of both."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from conveyor.checkpoint import folder as checkpoints
from conveyor.checkpoint import store
from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.monitor.csvfile import read_rows
from conveyor.options.units import many

TIMES = {"images_per_second", "update_seconds", "seconds", "data_wait", "memory_mib", "peak_share"}
"""Columns about how fast a run was, not what it computed."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs have in common, and where they first differ."""

    log_points: int
    checkpoints: int
    update: int | None = None
    """The first update after which something differs; None: they are identical."""
    what: str = ""

    @property
    def identical(self) -> bool:
        return self.update is None

    def sentence(self) -> str:
        """`identical: ...`, or where they first differ."""
        seen = f"{many(self.log_points, 'log point')} and {many(self.checkpoints, 'checkpoint')} compared"
        return (
            f"identical ({seen})" if self.identical else f"different from update {self.update} on: {self.what} ({seen})"
        )


def compare(one: Path, other: Path) -> Comparison:
    """Compare what two run folders recorded; log points and checkpoints that only one of them has are ignored."""
    logs = [_log_points(run) for run in (one, other)]
    saved = [{int(path.name): path for path in store.numbered(run)} for run in (one, other)]
    points, updates = sorted(logs[0].keys() & logs[1].keys()), sorted(saved[0].keys() & saved[1].keys())
    if not points and not updates:
        raise UserError(f"{one} and {other} have no log point and no checkpoint in common: nothing can be compared")
    found = [(update, what) for update in points if (what := _first_column(logs[0][update], logs[1][update]))]
    first = found[0] if found else None
    for update in updates:
        if first is not None and update > first[0]:
            break
        what = _first_tensor(*(checkpoints.load(paths[update]) for paths in saved))
        if what:
            first = (update, what)
            break
    return Comparison(len(points), len(updates), *(first or (None, "")))


def _log_points(run: Path) -> dict[int, dict[str, str]]:
    if not run.is_dir():
        raise UserError(f"{run} is not a run: give the folders of two runs")
    rows = read_rows(run / "metrics.csv")
    return {int(row["update"]): row for row in rows if row.get("update", "").isdecimal()}


def _first_column(one: dict[str, str], other: dict[str, str]) -> str:
    for name in one:
        if name in other and name not in TIMES and one[name] != other[name]:
            return f"{name} is {one[name]} and {other[name]}"
    return ""


def _first_tensor(one: State, other: State) -> str:
    for group in ("model", "optimizer", "averages"):
        left, right = getattr(one, group), getattr(other, group)
        if left.keys() != right.keys():
            return f"{group} has {min(left.keys() ^ right.keys())} in one run only"
        for name in sorted(left):
            a, b = left[name], right[name]
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"{name} has another shape or type"
            if not torch.equal(_bytes(a), _bytes(b)):
                apart = float((a.double() - b.double()).abs().max())
                return f"{name} ({group}), largest difference {apart:.3g}"
    return ""


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
