"""A limit on the gRPC messages that arrive at the same time. No torch here."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from conveyor.serve.errors import Overloaded

GRACE_SECONDS = 1.0
"""How long a message may take to arrive when others wait for its place."""


class Arrivals:
    """At most `most` messages arrive at a time.

    The library reports nothing about a message that is half received, so a slow sender and a stuck one cannot be told
    apart. As long as places are free neither is interrupted. When a sender waits for a place, the message that has been
    arriving longest loses its place after `grace` seconds; waiting senders are served last come first, so that a new
    one does not wait behind many stuck ones.
    """

    def __init__(self, most: int, grace: float = GRACE_SECONDS) -> None:
        self._most, self._grace = most, grace
        self._arriving: dict[asyncio.Timeout, float] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._free, self._ousted = most, 0
        """Free places, and places whose holders have been cancelled but have not left yet."""
        self._alarm: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for the body of a `with` statement; `Overloaded` when it was taken away for another sender."""
        await self._enter()
        try:
            async with asyncio.timeout(None) as timer:
                self._arriving[timer] = asyncio.get_running_loop().time()
                self._look()
                yield
        except TimeoutError:
            raise Overloaded("the message arrives too slowly while others wait: try again later") from None
        finally:
            self._ousted -= self._arriving.pop(timer, None) is None
            self._leave()

    async def _enter(self) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._look()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave()  # the place was granted at the same time as the cancellation
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.cancelled():
                turn.set_result(None)
                self._look()
                return
        self._free += 1

    def _look(self) -> None:
        """While a sender waits, set the timer for the message that has been arriving longest."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if len(self._waiting) > self._ousted and self._arriving:
            loop = asyncio.get_running_loop()
            oldest, since = next(iter(self._arriving.items()))
            self._alarm = loop.call_at(since + self._grace, self._give_up, oldest)

    def _give_up(self, oldest: asyncio.Timeout) -> None:
        self._alarm = None
        del self._arriving[oldest]
        self._ousted += 1
        oldest.reschedule(asyncio.get_running_loop().time())
        self._look()
