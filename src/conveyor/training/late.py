"""An update that takes longer than a signal leaves time for is given up, and the state before it is saved.

With large batches on few cores one update can take minutes, and who sends SIGTERM follows it with SIGKILL after some
seconds. Weights, statistics, optimiser and tallies change between the gradients of two updates only, so while gradients
are computed, another thread can save them as they are. Worker 0 has all of them unless the model is cut into stages.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from conveyor.checkpoint import folder as checkpoints
from conveyor.checkpoint import store
from conveyor.files import why
from conveyor.monitor.progress import say
from conveyor.remote.mirror import typed
from conveyor.training.events import Events
from conveyor.training.session import Session

SHARE = 0.5
"""Of the grace period, after which the update is given up: the rest is for saving."""


class Late:
    """Started by the first signal; `computing` marks the time in which the state of the run does not change."""

    def __init__(self, session: Session, events: Events) -> None:
        self._session, self._events = session, events
        self._changing = threading.Lock()
        self._changing.acquire()
        self._can_save = session.world.is_main and session.world.depth == 1 and session.world.device.type == "cpu"

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Only gradients are computed inside."""
        self._changing.release()
        try:
            yield
        finally:
            self._changing.acquire()

    def begin(self, number: signal.Signals) -> None:
        """A signal has come."""
        if self._can_save:
            seconds = SHARE * self._session.spec.options.layout.grace
            timer = threading.Timer(seconds, self._give_up, (number,))
            timer.daemon = True
            timer.start()

    def _give_up(self, number: signal.Signals) -> None:
        # Between updates the loop is about to leave by itself; while this thread has the lock, it cannot go on.
        with self._changing:
            session = self._session
            if session.reason is not None or session.update == session.spec.length.updates_total:
                return
            folder = self._events.folder
            # It may be writing the very checkpoint.
            self._events.writer.wait()
            path = folder / store.CHECKPOINTS / str(session.update)
            done = f"saved after update {session.update}"
            try:
                if not (path / checkpoints.MANIFEST).exists():
                    state = session.local_state()
                    state.progress = session.local_progress()()
                    checkpoints.save(path, state)
            except OSError as problem:
                done = f"nothing was saved ({why(problem)}), earlier checkpoints are intact"
            line = (
                f"{number.name}: stopped in update {session.update + 1}, which is given up; {done}; go on with conveyor "
                f"restore {typed(folder)}"
            )
            say(line, whole="'" in line)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + number)
