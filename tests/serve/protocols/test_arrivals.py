"""Places for messages that arrive: nobody holds one for long while others wait."""

import asyncio

import pytest

from conveyor.serve.errors import Overloaded
from conveyor.serve.protocols.arrivals import Arrivals


async def stuck(arrivals: Arrivals, said: list[str], name: str = "stuck") -> None:
    try:
        async with arrivals.place():
            said.append(f"{name} in")
            await asyncio.sleep(600)
    except Overloaded:
        said.append(f"{name} out")


async def quick(arrivals: Arrivals, said: list[str], name: str = "quick") -> None:
    async with arrivals.place():
        said.append(f"{name} in")


async def left(tasks: "list[asyncio.Task[None]]") -> int:
    """Ends the tasks; how many were still under way."""
    under_way = [task for task in tasks if not task.done()]
    for task in under_way:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return len(under_way)


def test_a_stuck_sender_gives_its_place_up_and_only_one_does() -> None:
    async def play() -> None:
        arrivals, said = Arrivals(3, grace=0.05), list[str]()
        holders = [asyncio.create_task(stuck(arrivals, said)) for _ in range(3)]
        await asyncio.sleep(0.2)  # four times the grace, in which nothing must happen
        assert said == ["stuck in"] * 3, "nobody waits: nobody is disturbed"
        async with asyncio.timeout(10):
            await quick(arrivals, said)
        await asyncio.sleep(0.1)  # twice the grace: no second one must go
        assert said[3:] == ["stuck out", "quick in"]
        assert await left(holders) == 2
        assert arrivals._free == 3

    asyncio.run(play())


def test_the_last_to_come_does_not_stand_behind_a_crowd_of_stuck_senders() -> None:
    async def play() -> None:
        arrivals, said = Arrivals(2, grace=0.1), list[str]()
        holders = [asyncio.create_task(stuck(arrivals, said)) for _ in range(200)]
        while len(said) < 2:
            await asyncio.sleep(0)
        async with asyncio.timeout(10):  # one after the other they would take 10 s
            await quick(arrivals, said)
        assert said.count("stuck in") < 20
        await left(holders)
        assert arrivals._free == 2
        assert not arrivals._waiting

    asyncio.run(play())


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.1])
def test_a_caller_that_leaves_takes_no_place_along(moment: float) -> None:
    async def play() -> None:
        arrivals, said = Arrivals(1, grace=0.02), list[str]()
        tasks = [asyncio.create_task(stuck(arrivals, said, str(number))) for number in range(20)]
        await asyncio.sleep(moment)
        await left(tasks)
        assert (arrivals._free, arrivals._ousted, arrivals._waiting, arrivals._arriving) == (1, 0, [], {})
        await quick(arrivals, said)

    asyncio.run(play())
