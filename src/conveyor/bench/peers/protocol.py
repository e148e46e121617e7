"""The programs' side of the protocol in `conveyor.measure.rounds`; plain Python, importable from a script beside it."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

SHORT, FEW = 0.5, 8
"""A turn of fewer seconds, with at most so many images in a batch, begins with a batch that is not timed."""


LIBRARIES = ("jax", "keras", "lightning", "onnxruntime", "openvino", "tensorflow", "torch")


def say_ready() -> None:
    """Print the first message: ready, and the library versions, which may differ from ours in a peer's environment."""
    found = {name: str(getattr(sys.modules[name], "__version__", "?")) for name in LIBRARIES if name in sys.modules}
    print(json.dumps({"ready": True, "versions": found}), flush=True)


def settings() -> dict[str, Any]:
    """The settings of this program, as JSON in the first argument."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def serve(step: Callable[[], Any], images_per_step: float, warmup: int = 2) -> None:
    """Warm up, then run as many steps as each request asks for. A step may count another unit than images."""
    for _ in range(warmup):
        step()
    say_ready()
    for line in sys.stdin:
        steps = json.loads(line)["steps"]
        started = time.perf_counter()
        for _ in range(steps):
            step()
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "images": steps * images_per_step}), flush=True)


def serve_batches(
    make: Callable[[int], Callable[[], Any]], about: Callable[[int], dict[str, Any]] = lambda batch: {}
) -> None:
    """Answer `{"prepare": batch}` by making and warming the step of that batch, then `{"seconds": s}` by running it.

    Only one batch size is kept. `about` returns details of a prepared one.
    """
    batch, step = 0, lambda: None
    say_ready()
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            batch = request["prepare"]
            step = make(batch)
            step()
            step()
            print(json.dumps({"prepared": batch, **about(batch)}), flush=True)
        else:
            print(json.dumps(timed(step, batch, request["seconds"])), flush=True)


def timed(step: Callable[[], Any], batch: int, seconds: float) -> dict[str, float]:
    """Run until `seconds` have passed, at least once; before a short turn once without counting.

    That wakes the threads and brings the weights back to the cache.
    """
    if 0 < seconds < SHORT and batch <= FEW:
        step()
    count = 0
    started, cpu = time.perf_counter(), time.process_time()
    while count < 1 or time.perf_counter() - started < seconds:
        step()
        count += 1
    taken = time.perf_counter() - started
    return {"seconds": taken, "images": count * batch, "cpu_seconds": time.process_time() - cpu}


def unavailable(why: object) -> NoReturn:
    """Print why this program cannot run here, and exit."""
    print(json.dumps({"unavailable": str(why).splitlines()[0] if str(why) else type(why).__name__}), flush=True)
    sys.exit(0)
