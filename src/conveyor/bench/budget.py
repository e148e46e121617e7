"""A fixed time for many measurements: every part gets its share of what is left, and what did not fit is listed."""

import time
from collections.abc import Callable, Mapping

PARTS = {
    "limits": 1.0, "training": 13.0, "inference": 15.0, "data": 2.0, "serving": 4.0, "lanes": 2.0, "growth": 10.0
}  # fmt: skip
"""The parts of `conveyor bench all`, each with its weight in the time."""


class Budget:
    """`seconds` for the parts of `shares` (name -> weight), in their order.

    A part may use its weight's share of the time that is left when it begins, so that time saved by one part goes to
    those after it, and a part that took too long takes from them.

    >>> budget = Budget(100, {"a": 1, "b": 3}, clock=lambda: 0.0)
    >>> budget.begin("a"), budget.begin("b")
    (25.0, 100.0)
    """

    def __init__(
        self, seconds: float, shares: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._to_come = dict(shares)
        self._part, self._part_end = "", self._end
        self.left_out: list[str] = []
        """Descriptions of what was not measured because the time was up."""

    def begin(self, part: str) -> float:
        """The seconds that `part` has."""
        left = max(0.0, self._end - self._clock())
        weight = self._to_come[part]
        seconds = left * weight / sum(self._to_come.values())
        del self._to_come[part]
        self._part, self._part_end = part, self._clock() + seconds
        return seconds

    def left(self) -> float:
        """Seconds until the running part should end."""
        return max(0.0, self._part_end - self._clock())

    def allows(self, what: str, seconds: float) -> bool:
        """Whether `what`, which takes about `seconds`, still fits into the running part; if not, it is noted."""
        if seconds <= self.left():
            return True
        self.left_out.append(f"{self._part}: {what}")
        return False
