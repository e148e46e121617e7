"""The time of one request, from its arrival to its answer. No torch here."""

import asyncio
import time


class Limit:
    """One timer around all that is done for a request: what is under way when it ends is cancelled.

    Timers are expensive, so the steps have none of their own: a step that is cancelled checks `up` and reports what was
    late.
    """

    __slots__ = ("_timer", "ends", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.ends = seconds, time.monotonic() + seconds
        self._timer = asyncio.timeout(seconds)

    @property
    def left(self) -> float:
        """Seconds; for threads, which no timer can cancel."""
        return self.ends - time.monotonic()

    @property
    def up(self) -> bool:
        """Whether the timer has ended, so that a cancellation comes from it and not from the caller."""
        return self._timer.expired()

    async def __aenter__(self) -> "Limit":
        await self._timer.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._timer.__aexit__(*error)  # type: ignore[arg-type]
