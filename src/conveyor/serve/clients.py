"""Many client processes against one server: `python -m conveyor.serve.clients` with the orders as JSON on its input.

A process of its own, light and without threads, so that forking many clients is cheap and safe.
"""

import json
import multiprocessing
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.serve.callers import Busy, Call, CallFailed, make_caller

WARM_UP_SECONDS = 1000.0
IN_FLIGHT = 8
"""Requests of one client under way at the same time with `use_async`."""
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.5


def main() -> int:
    order = json.load(sys.stdin)
    images = np.load(order["images"], allow_pickle=False)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(order["clients"] + 1)
    results = context.SimpleQueue()
    clients = [
        context.Process(target=_client, args=(number, order, images, barrier, results), daemon=True)
        for number in range(order["clients"])
    ]
    for client in clients:
        client.start()
    try:
        barrier.wait(WARM_UP_SECONDS)
    except threading.BrokenBarrierError:
        pass  # the client that broke it says why
    start = time.perf_counter()
    reports = [results.get() for _ in clients]
    seconds = time.perf_counter() - start
    for client in clients:
        client.join()
    json.dump({"seconds": seconds, "clients": reports}, sys.stdout)
    return 0


def _client(number: int, order: dict[str, Any], images: NDArray[np.uint8], barrier: Any, results: Any) -> None:
    """Warm up, wait for the others, send, report; whatever happens, something is reported."""
    report: dict[str, Any] = {"number": number, "images": 0, "latencies": [], "failures": [], "retries": 0}
    try:
        call = make_caller(
            order["protocol"],
            order["host"],
            order["port"],
            order["name"],
            input_name=order["input_name"],
            token=order["token"],
            tls=order["tls"],
        )
        batches = _batches(images, order["batch_size"], order["num_images"], number)
        try:
            _patiently(call, batches[0], WARM_UP_SECONDS, report)
        except CallFailed as error:
            report["failures"].append(f"warm-up: {error}")
            barrier.abort()
            return
        try:
            barrier.wait(WARM_UP_SECONDS)
        except threading.BrokenBarrierError:
            return
        _send_all(call, batches, order, report)
    except Exception as error:  # the parent waits for a report from every client
        report["failures"].append(f"{type(error).__name__}: {error}")
    finally:
        results.put(report)


def _batches(images: NDArray[np.uint8], size: int, count: int, number: int) -> list[NDArray[np.uint8]]:
    """ceil(count / size) batches, cut from the images in turn; each client starts at another one."""
    total = -(-count // size)
    positions = (np.arange(total * size) + number * size) % len(images)
    return [images[positions[index * size : (index + 1) * size]] for index in range(total)]


def _send_all(call: Call, batches: list[NDArray[np.uint8]], order: dict[str, Any], report: dict[str, Any]) -> None:
    timeout, talks = float(order["timeout"]), order["verbose"] and report["number"] == 0

    def one(batch: NDArray[np.uint8]) -> None:
        start = time.perf_counter()
        try:
            _patiently(call, batch, timeout, report)
        except CallFailed as error:
            report["failures"].append(str(error))
            return
        taken = time.perf_counter() - start
        report["latencies"].append(taken)
        report["images"] += len(batch)
        if talks:
            print(f"latency: {taken * 1000:.3f} ms", file=sys.stderr, flush=True)

    if order["use_async"]:
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            list(pool.map(one, batches))
        return
    for batch in batches:
        one(batch)


def _patiently(call: Call, batch: NDArray[np.uint8], timeout: float, report: dict[str, Any]) -> None:
    """Send a batch; when the server asks to come later, do so with growing pauses until the time is up."""
    end, pause = time.monotonic() + timeout, FIRST_PAUSE
    while True:
        try:
            call(batch, max(0.001, end - time.monotonic()))
            return
        except Busy:
            if time.monotonic() + pause >= end:
                raise
            report["retries"] += 1
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


if __name__ == "__main__":
    sys.exit(main())
