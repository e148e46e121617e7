"""Where a run begins: at update 0, or where a checkpoint was saved."""

import dataclasses
from pathlib import Path

from conveyor.checkpoint import store
from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.monitor.csvfile import read_rows
from conveyor.run import folder as rundir
from conveyor.run.stored_options import check_past, stored_options
from conveyor.spec import RunSpec
from conveyor.training import handover
from conveyor.world import restarts
from conveyor.world.world import World


def starting_state(spec: RunSpec, folder: Path, world: World) -> State | None:
    """The state to continue from; None for a new run. State handed over by the workers is newer than any checkpoint."""
    # A machine that joins has not started before, but all workers must take the same branch.
    times = max(world.of_all(restarts.starts()))
    if not times:
        return _saved_state(spec, folder, world, again=False)
    saved = store.numbered(folder) if world.is_main else []
    newest = world.broadcast_object(int(saved[-1].name) if saved else -1)
    state, begun = handover.take(handover.folder_here(), world, newest)
    state = state or _saved_state(spec, folder, world, again=True)
    return None if state is None else _counted(state, folder, world, times, begun)


def _counted(state: State, folder: Path, world: World, times: int, begun: int) -> State:
    """Count the starts (`times` of this job so far) and the updates that are done again in `state.progress`.

    The last update that a worker handed over as `begun` may be after that of the state, which may come from the disk.
    """
    progress = state.progress
    # Workers that died together handed nothing over: the state may be older than the newest log point.
    attempted = max(begun, _last_logged(folder, world))
    repeated = int(progress.get("updates_repeated", 0)) + max(0, attempted - state.update)
    job, before = progress.get("job", ["", 0])
    since = times - before if job == restarts.job() else times
    progress |= {"restarts": int(progress.get("restarts", 0)) + since, "updates_repeated": repeated}
    return state


def begun_anew(folder: Path, world: World) -> tuple[int, int]:
    """(restarts, updates that are done again) of a job whose workers died before anything was saved or handed over."""
    times = max(world.of_all(restarts.starts()))
    return (times, _last_logged(folder, world)) if times else (0, 0)


def _last_logged(folder: Path, world: World) -> int:
    """The newest update with a log point: later updates are not recorded, so a few more may be repeated."""
    rows = read_rows(folder / "metrics.csv") if world.is_main else []
    return int(
        world.broadcast_object(max((int(one) for row in rows if (one := row.get("update", "")).isdecimal()), default=0))
    )


def _saved_state(spec: RunSpec, folder: Path, world: World, *, again: bool) -> State | None:
    """The main worker chooses a checkpoint and sends it to all: the others need not see its folder."""
    found = None
    if world.is_main:
        if not again:
            rundir.refuse_taken(folder, resumes=spec.options.run.resume == "auto")
        found = saved_state(spec, folder, again=again)
    if not world.broadcast_object(found is not None):
        return None
    return world.broadcast_state(found, 0)


def saved_state(spec: RunSpec, folder: Path | None, *, again: bool = False) -> State | None:
    """The checkpoint that a run in `folder` would continue from: its own, or that of `--checkpoint-path`."""
    run = spec.options.run
    if (run.resume == "auto" or again) and folder is not None and rundir.holds_run(folder):
        return _resumed(spec, folder) if store.numbered(folder) else None
    if run.checkpoint_path is not None and spec.options.events.training:
        return store.load_newest(run.checkpoint_path)[1]
    return None


def with_stored_threads(spec: RunSpec, state: State | None) -> RunSpec:
    """A resumed run keeps its number of threads: library kernels add up in an order that depends on it."""
    stored = None if state is None else state.progress.get("threads")
    if not isinstance(stored, int) or spec.options.layout.threads is not None or stored == spec.layout.threads:
        return spec
    return spec.replace(layout=dataclasses.replace(spec.layout, threads=stored))


def _resumed(spec: RunSpec, folder: Path) -> State:
    """The checkpoint from which the run in `folder` is resumed; options that would change its updates are refused."""
    state = store.load_newest(folder)[1]
    stored = stored_options(folder, state.options)
    # A resumed run has its weights already: the file that it started with may be gone.
    asked = rundir.resolved_options(spec, folder).replace(weights=stored.model.weights)
    if spec.subject.num_classes == spec.data.num_classes:
        # Another number of class folders is reported by name, when the data are compared.
        asked = asked.replace(num_classes=stored.model.num_classes)
    check_past(stored, asked)
    return state


def check_fits(state: State, spec: RunSpec) -> None:
    """Refuse a checkpoint with another number of updates per epoch than the run, or from after the run's end."""
    stored = state.progress.get("updates_per_epoch")
    if stored != spec.length.updates_per_epoch:
        raise UserError(
            f"the checkpoint counts {stored} updates per epoch, this run {spec.length.updates_per_epoch}: "
            "resume with the data and batch sizes of the stored run, or start a new run with --weights"
        )
    if state.update > spec.length.updates_total:
        raise UserError(
            f"the checkpoint is at update {state.update}, past the end of this run at {spec.length.updates_total}: "
            "raise --epochs or --updates"
        )
