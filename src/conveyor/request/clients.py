"""Many client processes against one server: `python -m conveyor.request.clients`, settings as JSON on standard input.

A process of its own, light and without threads, so that forking many clients is cheap and safe.
"""

import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.processes import end_with_parent
from conveyor.request.callers import Busy, Call, CallFailed, Target, make_caller

WARM_UP_SECONDS = 1000.0
IN_FLIGHT = 8
"""Requests of one client under way at the same time with `use_async`."""
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.5


def main() -> int:
    end_with_parent()
    order = json.load(sys.stdin)
    images = np.load(order["images"], allow_pickle=False)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(order["clients"] + 1)
    clients = []
    for number in range(order["clients"]):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_client, args=(number, order, images, barrier, sender), daemon=True)
        process.start()
        sender.close()  # so that the end of the client is the end of its pipe
        clients.append((process, receiver))
    _wait_for_all(barrier, [process for process, _ in clients])
    start = time.perf_counter()
    reports = [_report_of(process, receiver) for process, receiver in clients]
    seconds = time.perf_counter() - start
    json.dump({"seconds": seconds, "clients": reports}, sys.stdout)
    return 0


def _wait_for_all(barrier: Any, clients: list[Any]) -> None:
    """Until every client is warm; one that was killed would let the others wait for it."""
    while barrier.n_waiting < len(clients) and not barrier.broken:
        if any(client.exitcode is not None for client in clients):
            barrier.abort()
        time.sleep(0.005)
    with contextlib.suppress(threading.BrokenBarrierError):  # the client that broke it says why
        barrier.wait(WARM_UP_SECONDS)


def _report_of(process: Any, receiver: Any) -> dict[str, Any]:
    """What a client reports; of one that was killed, that it was."""
    report = _empty_report()
    with contextlib.suppress(EOFError):
        report = receiver.recv()
    process.join()
    if process.exitcode != 0:
        report["failures"].append(f"a client process ended with exit code {process.exitcode}")
    return report


def _empty_report() -> dict[str, Any]:
    return {"images": 0, "latencies": [], "failures": [], "retries": 0, "cpu_seconds": 0.0}


def _client(number: int, order: dict[str, Any], images: NDArray[np.uint8], barrier: Any, results: Any) -> None:
    """Warm up, wait for the others, send, report; whatever happens, something is reported."""
    end_with_parent()
    report = {**_empty_report(), "number": number}
    try:
        call = make_caller(Target(**{field.name: order[field.name] for field in dataclasses.fields(Target)}))
        size = order["batch_size"]
        try:
            _send_with_retries(call, next(_batches(images, size, number)), WARM_UP_SECONDS, report)
        except CallFailed as error:
            report["failures"].append(f"warm-up: {error}")
            barrier.abort()
            return
        try:
            barrier.wait(WARM_UP_SECONDS)
        except threading.BrokenBarrierError:
            return
        begun = time.process_time()
        endless = _batches(images, size, number)
        batches: Iterator[NDArray[np.uint8]]
        if order["seconds"] is not None:
            end = time.perf_counter() + order["seconds"]
            batches = itertools.takewhile(lambda _: time.perf_counter() < end, endless)
        else:
            batches = itertools.islice(endless, -(-order["num_images"] // size))
        _send_all(call, batches, order, report)
        report["cpu_seconds"] = time.process_time() - begun
        if order["verbose"] and number == 0 and report["latencies"]:
            taken = 1000 * np.array(report["latencies"])
            words = f"average {taken.mean():.3f} ms, min {taken.min():.3f} ms, max {taken.max():.3f} ms"
            print(f"first client: {words}", file=sys.stderr, flush=True)
    except Exception as error:  # the parent waits for a report from every client
        report["failures"].append(f"{type(error).__name__}: {error}")
    finally:
        results.send(report)


def _batches(images: NDArray[np.uint8], size: int, number: int) -> Iterator[NDArray[np.uint8]]:
    """Batches without end, cut from the images in turn; each client starts at another one."""
    for index in itertools.count(number):
        yield images[(np.arange(size) + index * size) % len(images)]


def _send_all(call: Call, batches: Iterator[NDArray[np.uint8]], order: dict[str, Any], report: dict[str, Any]) -> None:
    timeout, talks = float(order["timeout"]), order["verbose"] and report["number"] == 0
    turns, rate, first = itertools.count(report["number"], order["clients"]), order["rate"], time.perf_counter()

    def one(batch: NDArray[np.uint8]) -> None:
        start = time.perf_counter() if rate is None else _wait_until(first + next(turns) / rate)
        try:
            _send_with_retries(call, batch, timeout, report)
        except CallFailed as error:
            report["failures"].append(str(error))
            return
        taken = time.perf_counter() - start
        report["latencies"].append(taken)
        report["images"] += len(batch)
        if talks:
            print(f"Latency for batch: {taken * 1000:.3f} ms", file=sys.stderr, flush=True)

    if not order["use_async"]:
        for batch in batches:
            one(batch)
        return
    lock = threading.Lock()

    def some() -> None:
        while True:
            with lock:
                batch = next(batches, None)
            if batch is None:
                return
            one(batch)

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for future in [pool.submit(some) for _ in range(IN_FLIGHT)]:
            future.result()


def _wait_until(due: float) -> float:
    """Wait for the moment at which a request is due, from which its latency counts; a late one is sent at once.

    Counted from when it is sent, a slow server would get fewer requests than were asked for, and look fast.
    """
    time.sleep(max(0.0, due - time.perf_counter()))
    return due


def _send_with_retries(call: Call, batch: NDArray[np.uint8], timeout: float, report: dict[str, Any]) -> None:
    """Send a batch; when the server is busy, retry with growing pauses until the time is up."""
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
