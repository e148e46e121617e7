"""Where a run begins: at update 0, or where a checkpoint was saved."""

import os
from pathlib import Path

from conveyor.checkpoint import folder as checkpoints
from conveyor.checkpoint import store
from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.training import rundir
from conveyor.training.spec import RunSpec
from conveyor.training.world import World


def restarted() -> bool:
    """Whether the elastic launcher has started this worker again after another one died."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def starting_state(spec: RunSpec, folder: Path, world: World) -> State | None:
    """The state to go on from; None for a new run. The main worker chooses, all load the same checkpoint."""
    path: str | None = None
    state: State | None = None
    if world.is_main:
        found = _choose(spec, folder)
        if found is not None:
            chosen, state = found
            path = os.fspath(chosen)
    path = world.broadcast_object(path)
    if path is None or state is not None:
        return state
    return checkpoints.load(path)


def _choose(spec: RunSpec, folder: Path) -> tuple[Path, State] | None:
    run = spec.options.run
    if (run.resume == "auto" or restarted()) and rundir.holds_run(folder):
        return store.load_newest(folder) if store.numbered(folder) else None
    rundir.refuse_taken(folder)
    if run.checkpoint_path is not None and spec.options.events.training:
        return store.load_newest(run.checkpoint_path)
    return None


def check_fits(state: State, spec: RunSpec) -> None:
    """The clock of the checkpoint must be the clock of the run."""
    stored = state.progress.get("updates_per_epoch")
    if stored != spec.updates_per_epoch:
        raise UserError(
            f"the checkpoint counts {stored} updates per epoch, this run {spec.updates_per_epoch}: "
            "resume with the data and batch sizes of the stored run, or start a new run with --weights"
        )
    if state.update > spec.updates_total:
        raise UserError(
            f"the checkpoint is at update {state.update}, past the end of this run at {spec.updates_total}: "
            "raise --epochs or --updates"
        )
