"""Asked to leave: SIGTERM, SIGUSR1, SIGHUP and the first SIGINT end a run after the update in work, with a checkpoint."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from conveyor.training import handover
from conveyor.world.world import World

LEAVE = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)


class Signals:
    """Records the first signal, which does not end the process; a second SIGINT is the usual KeyboardInterrupt.

    SIGTERM from a launcher that is going to start the workers again does not end the run: see `start_again`.
    Handlers can only be set in the main thread; elsewhere (a notebook's worker thread) nothing is caught.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.start_again = False
        self._on_leave: Callable[[signal.Signals], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in LEAVE:
                # nohup lets a run outlive its terminal by ignoring SIGHUP: that stays so.
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before.clear()

    def on_leave(self, call: Callable[[signal.Signals], None]) -> None:
        """Call it with the first signal, which may have come already."""
        self._on_leave = call
        if self.received is not None:
            call(self.received)

    def agree(self, world: World) -> None:
        """After any worker received a signal: all of them name the same one, the lowest number of those received."""
        heard = world.of_all(None if self.received is None else int(self.received))
        self.received = signal.Signals(min(number for number in heard if number is not None))

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGTERM and handover.start_is_announced():
            self.start_again = True
            return
        if self.received is None:
            self.received = signal.Signals(number)
            if self._on_leave is not None:
                self._on_leave(self.received)
