"""Engine processes that do not start."""

import asyncio
from typing import Any

import pytest

from conveyor.errors import UserError
from conveyor.serve.pool import Pool, Worker, WorkerDied
from conveyor.serve.settings import ServeSettings


class Pretended:
    """A worker that needs no process."""

    def __init__(self) -> None:
        self.stopped = False

    async def stop(self) -> None:
        self.stopped = True


def test_workers_are_ended_when_another_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Pretended] = []

    async def start(order: dict[str, Any]) -> tuple[Pretended, dict[str, Any]]:
        worker = Pretended()
        started.append(worker)
        if len(started) == 3:
            raise WorkerDied("killed")
        return worker, {"engine": "torch", "fitted": {}}

    monkeypatch.setattr(Worker, "start", start)
    pool = Pool("x", ServeSettings(path="x", engine="torch", batch_sizes=(1,), workers=4, threads=1, timeout=1.0))
    with pytest.raises(UserError, match="killed"):
        asyncio.run(pool.start())
    assert len(started) == 4
    assert [worker.stopped for worker in started] == [True, True, False, True]
