"""Checkpoints written in the background while training goes on; at most one in flight."""

import logging
import shlex
import threading
from collections.abc import Callable
from pathlib import Path

from conveyor.checkpoint import folder as one
from conveyor.checkpoint.choice import listing, run_of
from conveyor.checkpoint.state import Buffers, State
from conveyor.errors import UserError
from conveyor.files import why

_logger = logging.getLogger(__name__)


class BackgroundWriter:
    """Copies a state, then lets a thread write it.

    `save` returns as soon as the copy is made; it first waits for the checkpoint before it. A checkpoint that cannot be
    written (disk full) leaves the older ones untouched and is reported; training goes on and tries again at the next.
    """

    def __init__(self, after: Callable[[Path, State], None] | None = None) -> None:
        self._after = after
        self._buffers = Buffers()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """Why the last checkpoint could not be written; None when it was."""

    def save(self, folder: Path, state: State) -> None:
        """Write `state` as `folder`, in the background."""
        self.wait()
        copy = self._buffers.copy(state)
        self._thread = threading.Thread(target=self._write, args=(folder, copy), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until no checkpoint is in flight."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, folder: Path, state: State) -> None:
        try:
            one.save(folder, state)
            self.problem = None
            if self._after is not None:
                self._after(folder, state)
        except FileNotFoundError:
            # The run folder was removed: the train loop detects that at its next update and reports it once.
            self.problem = f"checkpoint {folder} was not written: the run folder was removed"
        except OSError as problem:
            kept = "earlier checkpoints are intact" if listing(folder.parent) else "there is no earlier one"
            what = f"checkpoint {folder} was not written: {why(problem)}; {kept}"
            self.problem = (
                f"{what}: make room, then conveyor restore {shlex.quote(str(run_of(folder) or folder.parent))}"
            )
            _logger.error("%s: make room, and a run that goes on saves the next one", what)
        except UserError as problem:
            self.problem = str(problem)
            _logger.error("%s", self.problem)
