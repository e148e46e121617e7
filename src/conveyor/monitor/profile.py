"""Profiling a run: where the time and the memory go, by operator and by layer.

    profiler = TorchProfiler(options.run.profile, folder, worker)    # unless it is off
    profiler.attach(model)                      # after the model is ready; hooks only at level layers and full
    while ...:
        ...one update...
        profiler.step()                         # after every update; cheap when off or done
    profiler.close()                            # writes what was seen, also when the run was short

Levels: off; light (operator table of three updates); layers (operators with shapes, and time and memory of each layer);
full (all of it, with call stacks in the trace). Update 0 is left out (it allocates), updates 1 to 3 are measured; a
shorter run measures what there is. Files in the folder: `trace-<worker>.json.gz` (opens in Perfetto), and from worker 0
`operators.json`, `layers.json` and `profile.txt`.
"""

import gzip
import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conveyor.files import replacing, write_atomically
from conveyor.monitor.table import format_table

SKIPPED_UPDATES = 1
MEASURED_UPDATES = 3
_log = logging.getLogger(__name__)


class TorchProfiler:
    """The torch profiler over a few updates, and hooks that time every leaf layer; `folder` is made when it is written."""

    def __init__(self, level: str, folder: Path, worker: int) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # hides its messages at start and stop
        import torch

        self._level, self._folder, self._worker = level, folder, worker
        self._updates = 0
        self._layers: LayerTimes | None = None
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        detailed = level != "light"
        self._torch: Any = torch.profiler.profile(
            activities=activities,
            record_shapes=detailed,
            profile_memory=level == "full",
            with_stack=level == "full",
            acc_events=True,
        )
        self._running = False
        self._written = False

    def attach(self, model: Any) -> None:
        if self._level != "light":
            self._layers = LayerTimes(model)

    def step(self) -> None:
        if self._written:
            return
        self._updates += 1
        if self._updates == SKIPPED_UPDATES:
            self._start()
        elif self._updates == SKIPPED_UPDATES + MEASURED_UPDATES:
            self.close()

    def close(self) -> None:
        if self._written:
            return
        self._written = True
        if self._running:
            self._torch.stop()
        if self._updates <= SKIPPED_UPDATES:
            if self._layers is not None:
                self._layers.remove()
            _log.warning("note: the run was too short to profile: it needs %d updates", SKIPPED_UPDATES + 1)
            return
        self._folder.mkdir(exist_ok=True)
        self._write_trace()
        if self._worker == 0:
            operators = operator_table(self._torch)
            layers = self._layers.table() if self._layers is not None else []
            write_atomically(self._folder / "operators.json", json.dumps(operators, indent=0))
            write_atomically(self._folder / "layers.json", json.dumps(layers, indent=0))
            write_atomically(self._folder / "profile.txt", as_text(operators, layers))
        if self._layers is not None:
            self._layers.remove()

    def _start(self) -> None:
        self._running = True
        if self._layers is not None:
            self._layers.enable()
        self._torch.start()

    def _write_trace(self) -> None:
        plain = self._folder / f".trace-{self._worker}.json"
        try:
            self._torch.export_chrome_trace(str(plain))
            with (
                replacing(self._folder / f"trace-{self._worker}.json.gz") as temporary,
                plain.open("rb") as source,
                gzip.open(temporary, "wb", compresslevel=5) as packed,
            ):
                shutil.copyfileobj(source, packed)
        finally:
            plain.unlink(missing_ok=True)


class LayerTimes:
    """Forward time of every leaf module, bytes of its outputs, and the memory in use when it ended.

    Memory in use is, on CUDA, what is allocated; on the CPU, the sum of the outputs of the micro-batch so far, which is
    what the backward pass will need (an upper bound: a tensor changed in place counts once for each layer).
    """

    def __init__(self, model: Any) -> None:
        self._enabled = False
        self._rows: dict[str, dict[str, Any]] = {}
        self._started: dict[str, float] = {}
        self._held = 0
        self._seen: set[str] = set()
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            if next(module.children(), None) is None:
                self._handles.append(module.register_forward_pre_hook(self._before(name)))
                self._handles.append(module.register_forward_hook(self._after(name)))

    def enable(self) -> None:
        self._enabled = True

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, name: str) -> Callable[[Any, Any], None]:
        def hook(module: Any, inputs: Any) -> None:
            if self._enabled:
                if name in self._seen:  # a layer for the second time: a new micro-batch
                    self._seen.clear()
                    self._held = 0
                self._seen.add(name)
                self._started[name] = _synchronised_time(inputs)

        return hook

    def _after(self, name: str) -> Callable[[Any, Any, Any], None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            started = self._started.pop(name, None)
            if started is None:
                return
            tensors = (
                [output]
                if hasattr(output, "element_size")
                else [part for part in output if hasattr(part, "element_size")]
            )
            size = sum(part.element_size() * part.nelement() for part in tensors)
            self._held += size
            in_use = _allocated(tensors) or self._held
            row = self._rows.setdefault(
                name,
                {
                    "name": name or type(module).__name__, "kind": type(module).__name__, "calls": 0, "seconds": 0.0,
                    "bytes": size, "peak_bytes": 0, "shape": ", ".join(str(list(part.shape)) for part in tensors),
                    "parameters": sum(parameter.nelement() for parameter in module.parameters()),
                },
            )  # fmt: skip
            row["calls"] += 1
            row["seconds"] += _synchronised_time(inputs) - started
            row["peak_bytes"] = max(row["peak_bytes"], in_use)

        return hook

    def table(self) -> list[dict[str, Any]]:
        """A row per layer, heaviest first, with its share of the forward time."""
        total = sum(row["seconds"] for row in self._rows.values()) or 1.0
        rows = [{**row, "share": row["seconds"] / total} for row in self._rows.values()]
        return sorted(rows, key=lambda row: -row["seconds"])


def operator_table(profile: Any, limit: int = 60) -> list[dict[str, Any]]:
    """Own time of every operator, by input shapes when they were recorded, heaviest first."""
    averages = [event for event in profile.key_averages(group_by_input_shape=True) if not event.is_user_annotation]
    rows = []
    for event in averages:
        own = (event.self_cpu_time_total + getattr(event, "self_device_time_total", 0)) * 1e-6
        shapes = [shape for shape in (getattr(event, "input_shapes", None) or []) if shape]
        rows.append({"name": event.key, "shapes": str(shapes) if shapes else "", "calls": event.count, "seconds": own})
    total = sum(row["seconds"] for row in rows) or 1.0
    rows.sort(key=lambda row: -row["seconds"])
    return [{**row, "share": row["seconds"] / total} for row in rows[:limit]]


def as_text(operators: list[dict[str, Any]], layers: list[dict[str, Any]], limit: int = 25) -> str:
    """The two tables for a terminal."""
    times = lambda row: (f"{1e3 * row['seconds']:.2f}", f"{100 * row['share']:.1f}%")  # noqa: E731
    called = [[*times(row), row["calls"], f"{row['name']} {row['shapes']}"] for row in operators[:limit]]
    text = format_table(["own ms", "share", "calls", "operator"], called, rule=False) + "\n"
    if layers:
        named = [
            [
                *times(row), f"{row['bytes'] / 2**20:.2f}", f"{row['peak_bytes'] / 2**20:.2f}",
                f"{row['name']} ({row['kind']}) {row['shape']}",
            ]
            for row in layers[:limit]
        ]  # fmt: skip
        titles = ["forward ms", "share", "out MiB", "in use MiB", "layer"]
        text += "\n" + format_table(titles, named, rule=False) + "\n"
    return text


def _synchronised_time(tensors: Any) -> float:
    """The clock after all work queued for the tensors' device; on the CPU nothing is queued."""
    first = (
        next((part for part in tensors if getattr(part, "is_cuda", False)), None)
        if isinstance(tensors, tuple)
        else None
    )
    if first is not None:
        import torch

        torch.cuda.synchronize(first.device)
    return time.perf_counter()


def _allocated(tensors: list[Any]) -> int:
    if tensors and getattr(tensors[0], "is_cuda", False):
        import torch

        return int(torch.cuda.memory_allocated(tensors[0].device))
    return 0
