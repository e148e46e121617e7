"""When the workers ask each other whether one of them has a reason to leave: by time, after updates that all know.

On a CPU the answer costs nothing and is read after every update. On a GPU reading it makes the host wait for the device,
so it is read about once a second: worker 0 brings the seconds since the last answer into the question, and from the same
sum all workers compute the same next update:

    next = update + max(1, min(2 n, n * POLL_SECONDS / seconds)),   n = updates since the last answer
"""

import time

POLL_SECONDS = 1.0


class Polling:
    """The next update after which the workers ask; `answered` moves it on."""

    def __init__(self, update: int, *, every: bool) -> None:
        """`update`: updates done so far. `every`: ask after each one."""
        self._every, self._last, self._next = every, update, update + 1
        self._since = time.monotonic()

    def due(self, done: int) -> bool:
        """Whether to ask when `done` updates are complete."""
        return self._every or done >= self._next

    def seconds(self) -> float:
        """Since the last answer, on this worker."""
        return time.monotonic() - self._since

    def answered(self, done: int, seconds: float) -> None:
        """All have the answer after `done` updates; `seconds` is worker 0's time since the last one."""
        updates = max(1, done - self._last)
        by_time = int(updates * POLL_SECONDS / max(seconds, 1e-9))
        self._last, self._next = done, done + max(1, min(2 * updates, by_time))
        self._since = time.monotonic()
