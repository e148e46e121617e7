"""The engine processes of one model version: started, supervised, restarted, stopped."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.errors import UserError
from conveyor.infer import AnswerPrecision
from conveyor.layout import usable_cores
from conveyor.processes import of_module
from conveyor.serve import ipc
from conveyor.serve.errors import Unavailable
from conveyor.serve.settings import ServeSettings

START_SECONDS = 300.0
MEASURE_SECONDS = 3600.0
"""For the first worker when it also quantises and measures accuracies."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a worker that died is started again; doubled each time it fails to start."""
_logger = logging.getLogger(__name__)


class WorkerDied(Exception):  # noqa: N818 - an event, not a mistake
    """The process ended, or hung, while it had a batch."""


class Worker:
    """One engine process and the socket to it; it has one batch at a time."""

    def __init__(self, process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
        self.process = process
        self._connection = connection
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, order: dict[str, Any]) -> "tuple[Worker, dict[str, Any]]":
        """Start a process and wait until its engine is warm; returns what it says of the model."""
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": str(order["threads"]), "OMP_WAIT_POLICY": "PASSIVE"}
        with theirs:
            process = subprocess.Popen(
                of_module("conveyor.serve.engine_process", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        worker = cls(process, ours)
        try:
            worker._reader, worker._writer = await asyncio.open_connection(sock=ours)
            await worker._send(0, json.dumps(order).encode())
            measures = order.get("fitted") is None and order["wanted"]["infer_precision"] not in (
                None,
                AnswerPrecision.FLOAT32,
            )
            async with asyncio.timeout(MEASURE_SECONDS if measures else START_SECONDS):
                document = json.loads((await worker._receive())[1])
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            worker.kill()
            raise WorkerDied(f"an engine process did not start (exit code {process.wait()})") from error
        except BaseException:
            worker.kill()
            raise
        if "error" in document:
            worker.kill()
            raise UserError(document["error"])
        return worker, document

    async def run(self, images: NDArray[np.uint8], timeout: float) -> NDArray[np.float32]:
        """Logits of one batch; raises `WorkerDied` when no answer will come."""
        try:
            async with asyncio.timeout(timeout):
                await self._send(len(images), np.ascontiguousarray(images).data.cast("B"))
                count, content = await self._receive()
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            raise WorkerDied(f"engine process {self.process.pid} gave no answer") from error
        return np.frombuffer(content, np.float32).reshape(count, -1)

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(AttributeError, RuntimeError):
            self._writer.close()
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def stop(self) -> None:
        """Close the socket and wait for the process to end; one that does not is killed."""
        self._writer.close()
        try:
            async with asyncio.timeout(5):
                while self.process.poll() is None:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self.kill()
        await asyncio.to_thread(self.process.wait)

    async def _send(self, count: int, content: bytes | memoryview) -> None:
        self._writer.write(ipc.HEADER.pack(count, len(content)))
        self._writer.write(content)
        await self._writer.drain()

    async def _receive(self) -> tuple[int, bytes]:
        count, length = ipc.HEADER.unpack(await self._reader.readexactly(ipc.HEADER.size))
        return count, await self._reader.readexactly(length)


class Pool:
    """`count` workers for one version of a model.

    A batch whose worker dies is given to another worker once more; a batch that kills two workers is refused, so that a
    request that crashes engines cannot stop all workers again and again.
    """

    def __init__(self, path: str, settings: ServeSettings, on_restart: Callable[[], None] = lambda: None) -> None:
        cores = usable_cores()
        self.count = settings.workers or min(cores, 8)
        self.threads = settings.threads or max(1, cores // self.count)
        self.described: dict[str, Any] = {}
        self._order: dict[str, Any] = {
            "path": path, "engine": settings.engine, "sizes": settings.sizes(), "threads": self.threads,
            "wanted": dataclasses.asdict(settings.wanted()),
        }  # fmt: skip
        self._run_timeout = settings.timeout
        self._on_restart = on_restart
        self._free: asyncio.Queue[Worker] = asyncio.Queue()
        self._all: set[Worker] = set()
        self._restarting: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def start(self) -> None:
        """Start the workers: the first alone, since it may measure engines; the others with what it chose."""
        try:
            worker, self.described = await Worker.start(self._order)
            self._order["fitted"] = self.described["fitted"]
            self._add(worker)
            others = await asyncio.gather(
                *(Worker.start(self._order) for _ in range(self.count - 1)), return_exceptions=True
            )
            for started in others:  # first those that run, so that `stop` ends them when another did not start
                if not isinstance(started, BaseException):
                    self._add(started[0])
            for started in others:
                if isinstance(started, BaseException):
                    raise started
        except WorkerDied as error:
            await self.stop()
            raise UserError(f"{error}; see its output above") from error
        except BaseException:
            await self.stop()
            raise

    def _add(self, worker: Worker) -> None:
        self._all.add(worker)
        self._free.put_nowait(worker)

    @property
    def alive(self) -> int:
        return sum(worker.process.poll() is None for worker in self._all)

    async def run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Logits of a batch of an allowed size, from whichever worker is free first."""
        for _ in range(2):
            worker = await self._free.get()
            try:
                answer = await worker.run(images, self._run_timeout)
            except WorkerDied as error:
                _logger.warning("%s: it is replaced, its batch is tried once more", error)
                self._replace(worker)
                continue
            except BaseException:
                self._replace(worker)  # cancelled in the middle of a message: the socket is of no further use
                raise
            self._free.put_nowait(worker)
            return answer
        raise Unavailable("two engine processes died on this batch: it is given up")

    def _replace(self, worker: Worker) -> None:
        worker.kill()
        self._all.discard(worker)
        if self._stopped:
            return
        task = asyncio.get_running_loop().create_task(self._restart(worker))
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    async def _restart(self, dead: Worker) -> None:
        await asyncio.to_thread(dead.process.wait)
        pause = SHORTEST_PAUSE
        while not self._stopped:
            await asyncio.sleep(pause)
            try:
                worker, _ = await Worker.start(self._order)
            except (WorkerDied, UserError, OSError) as error:
                _logger.warning("an engine process could not be started again: %s", error)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            self._on_restart()
            self._add(worker)
            return

    async def watch(self) -> None:
        """Replace idle workers that died; runs until cancelled."""
        while True:
            await asyncio.sleep(0.25)
            idle = [self._free.get_nowait() for _ in range(self._free.qsize())]
            for worker in idle:
                if worker.process.poll() is None:
                    self._free.put_nowait(worker)
                else:
                    _logger.warning("idle engine process %d died: it is replaced", worker.process.pid)
                    self._replace(worker)

    async def stop(self) -> None:
        """End all workers; nothing may be under way."""
        self._stopped = True
        for task in list(self._restarting):
            task.cancel()
        await asyncio.gather(*self._restarting, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._all), return_exceptions=True)
        self._all.clear()
