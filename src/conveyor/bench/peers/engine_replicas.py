"""Conveyor's engine called directly, as many copies as a server would have: `{"seconds": s}` in, `{"images", "seconds"}` out."""

import json
import sys
import threading
import time

from protocol import settings


def main() -> None:
    import numpy as np

    from conveyor.infer.engines import auto
    from conveyor.infer.engines.engine import open_named
    from conveyor.infer.load import load

    asked = settings()
    source = load(asked["path"]).source
    batch, threads = asked["batch"], asked["threads"]
    name = asked["engine"]
    if name == "auto":
        name = auto.choose(source, batch=batch, threads=threads).engine
    engines = [open_named(source, name, batch=batch, threads=threads) for _ in range(asked["workers"])]
    images = np.random.default_rng(0).integers(0, 256, (batch, *engines[0].image_shape), dtype=np.uint8)
    for engine in engines:
        engine(images)
        engine(images)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        seconds, counts = json.loads(line)["seconds"], [0] * len(engines)
        start = time.perf_counter()

        def work(index: int, start: float = start, seconds: float = seconds, counts: list[int] = counts) -> None:
            while time.perf_counter() - start < seconds:
                engines[index](images)
                counts[index] += batch

        workers = [threading.Thread(target=work, args=(index,)) for index in range(len(engines))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(json.dumps({"images": sum(counts), "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
