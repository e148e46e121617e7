"""The contestants' side of the protocol in `conveyor.bench.rounds`; plain Python, importable from a script beside it."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn


def settings() -> dict[str, Any]:
    """What this contestant is asked to run, as JSON in the first argument."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def serve(step: Callable[[], Any], images_per_step: float, warmup: int = 2) -> None:
    """Warm up, then run as many steps as each request asks for. A step may count something else than images."""
    for _ in range(warmup):
        step()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        steps = json.loads(line)["steps"]
        started = time.perf_counter()
        for _ in range(steps):
            step()
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "images": steps * images_per_step}), flush=True)


def unavailable(why: object) -> NoReturn:
    """Say why this contestant cannot run here, and end."""
    print(json.dumps({"unavailable": str(why).splitlines()[0] if str(why) else type(why).__name__}), flush=True)
    sys.exit(0)
