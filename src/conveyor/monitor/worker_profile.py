"""What a worker records while it trains: the timeline of a few updates and, when asked for, a profile.

The loop's phase clock calls `mark` at the end of every phase; the end of the phase `update` ends an update.
"""

import contextlib
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.monitor import timeline
from conveyor.monitor.profile import TorchProfiler
from conveyor.options.run import RunOptions

FIRST_UPDATE = 1
LAST_UPDATE = 3
"""Updates whose spans are kept, counted from 0: the first one allocates and is not like the others."""


class WorkerProfile:
    """The recorder of a worker: a timeline if `record` is on, a profile unless its level is off."""

    def __init__(
        self, folder: Path, worker: int = 0, *, record: bool = False, profiler: TorchProfiler | None = None
    ) -> None:
        self._folder, self._worker, self._record = folder, worker, record
        self._profiler = profiler
        self._update = 0
        self._slot = 0
        self._spans_before = 0
        self._done = not record

    def mark(self, phase: str, start: float, end: float) -> None:
        """A phase from `start` to `end`, both from `time.perf_counter`."""
        if not self._done and timeline.here.enabled:
            self._add(phase, start, end)
        if phase == "update":
            self._end_update()

    def _add(self, phase: str, start: float, end: float) -> None:
        line = timeline.here
        # In a pipeline the stages have recorded their own passes inside this phase.
        covered = phase in ("forward", "backward") and len(line.spans) > self._spans_before
        if not covered:
            slot = self._slot if phase in ("forward", "backward", "data") else -1
            line.add(phase, line.at(start), line.at(end), slot=slot)
        if phase == "backward":
            self._slot += 1
        self._spans_before = len(line.spans)

    def _end_update(self) -> None:
        self._update += 1
        self._slot = 0
        if self._profiler is not None:
            self._profiler.step()
        if self._record and self._update == FIRST_UPDATE:
            timeline.start(self._worker)
            self._spans_before = 0
        if not self._done and self._update == LAST_UPDATE + 1:
            self._write()

    def _write(self) -> None:
        self._done = True
        if timeline.here.enabled:
            timeline.here.enabled = False
            # A removed run folder or a full disk must not end the run for the sake of a chart.
            with contextlib.suppress(OSError, UserError):
                timeline.write(self._folder / f"timeline-{self._worker}.json", timeline.here.spans)

    def close(self) -> None:
        """The run is over: write what there is."""
        if self._profiler is not None:
            self._profiler.close()
        if not self._done:
            self._write()


def make_worker_profile(run: RunOptions, folder: Path, worker: int, module: Any, *, on_cpu: bool) -> WorkerProfile:
    """The recorder of a worker; no timeline on accelerators, where the host's clock says little about the passes."""
    where = Path(run.profile_dir) if run.profile_dir is not None else folder / "profile"
    if run.profile != "off" and run.profile_dir is not None:
        # Profiles are written at the end of a run: a folder that cannot be written is reported before it starts.
        try:
            where.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(
                f"cannot make the folder {where} for profiles ({problem.strerror}): see --profile-dir"
            ) from None
    profiler = None
    if run.profile != "off":
        profiler = TorchProfiler(run.profile, where, worker)
        profiler.attach(module)
    return WorkerProfile(folder, worker, record=on_cpu, profiler=profiler)
