"""Several copies of an engine, one per group of cores: throughput instead of latency."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

from conveyor.infer.engines.engine import Engine


def core_groups(cores: int, replicas: int) -> list[int]:
    """Threads of each replica: the cores dealt out as evenly as possible, at least one each."""
    if replicas < 1:
        raise ValueError(f"{replicas} replicas")
    share, rest = divmod(cores, replicas)
    return [max(1, share + (1 if index < rest else 0)) for index in range(replicas)]


class Replicas:
    """Engines that work on different batches at the same time, each called by one thread of its own.

    Engines release the interpreter's lock while they compute, so threads are enough.
    """

    def __init__(self, open_one: Callable[[int], Engine], cores: int, replicas: int) -> None:
        self.engines = [open_one(threads) for threads in core_groups(cores, replicas)]
        self._local = threading.local()
        self._free = iter(self.engines)
        self._lock = threading.Lock()
        self._pool = concurrent.futures.ThreadPoolExecutor(len(self.engines), initializer=self._take_engine)

    def _take_engine(self) -> None:
        with self._lock:
            self._local.engine = next(self._free)

    def submit(self, work: Callable[[Engine], Any]) -> "concurrent.futures.Future[Any]":
        """Run `work(engine)` on whichever replica is free next."""
        return self._pool.submit(lambda: work(self._local.engine))

    def close(self) -> None:
        self._pool.shutdown()
        for engine in self.engines:
            engine.close()

    def __enter__(self) -> "Replicas":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
