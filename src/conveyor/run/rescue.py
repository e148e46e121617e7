"""The run folder was removed while the run was going on: the state goes to a new folder beside it, and the run ends.

The history of the run (metrics, log, earlier checkpoints) is lost; going on in a new folder of the old name would look like
a run with half of its files.
"""

from pathlib import Path
from typing import NoReturn

from conveyor.checkpoint import folder as checkpoints
from conveyor.checkpoint import store
from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.files import free_name
from conveyor.remote.mirror import typed
from conveyor.run import folder
from conveyor.training.session import Session


def rescue(session: Session, lost: Path) -> NoReturn:
    """Save the state elsewhere and end with a sentence that says where; every worker calls it."""
    state = session.state()
    sentence = _saved(session, lost, state) if session.world.is_main else ""
    raise UserError(session.world.broadcast_object(sentence))


def _saved(session: Session, lost: Path, state: State) -> str:
    begin = f"the run folder {lost} was removed while the run was going on"
    target = free_name(lost.with_name(f"{lost.name}-rescued"))
    try:
        target.mkdir()
        folder.write_options(target, session.spec.options.replace(run_dir=str(target)))
        checkpoints.save(target / store.CHECKPOINTS / str(session.update), state)
    except (OSError, UserError) as problem:
        return f"{begin}, and its state could not be saved in {target} ({problem}): start it again"
    return f"{begin}: its state after update {session.update} is saved in {target}; go on with conveyor restore {typed(target)}"
