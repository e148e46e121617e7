"""One engine in a process of its own: `python -m conveyor.serve.engine_process FD`, FD being one end of a socket pair.

It ends when the other end is closed. Signals that a service manager sends to the whole group do not end it: the server
decides when the last answer has been given.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np

from conveyor.errors import UserError
from conveyor.serve import ipc


def main(file_descriptor: int) -> int:
    """Load, warm up, describe the model, then answer batches until the server closes the socket."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with socket.socket(fileno=file_descriptor) as connection:
        message = ipc.receive(connection)
        if message is None:
            return 0
        try:
            engine, described = open_model(json.loads(message[1]))
        except UserError as error:
            _send_json(connection, {"error": str(error)})
            return 1
        _send_json(connection, described)
        with contextlib.suppress(ConnectionError):  # the server died: nobody is left to answer
            while (message := ipc.receive(connection)) is not None:
                images = np.frombuffer(message[1], np.uint8).reshape(message[0], *engine.image_shape)
                logits = np.ascontiguousarray(engine(images), np.float32)
                ipc.send(connection, len(images), logits.tobytes())
    return 0


def open_model(order: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    from conveyor.infer.asked_precision import AskedPrecision
    from conveyor.infer.load import load
    from conveyor.infer.precision import Fit, fit

    loaded = load(order["path"])
    sizes = (loaded.batch,) if loaded.batch is not None else tuple(order["sizes"])
    said = order.get("fitted")
    if said is not None and (said["file"] is None or Path(said["file"]).is_file()):
        fitted = Fit.again(loaded, said)
    else:
        wanted = AskedPrecision(**order["wanted"])
        fitted = fit(loaded, wanted, batch=max(sizes), threads=order["threads"], engine=order["engine"])
    engine = fitted.open(batch=max(sizes), threads=order["threads"], spin=False)
    for size in sizes:
        classes = engine(np.zeros((size, *engine.image_shape), np.uint8)).shape[1]
    if classes != loaded.num_classes:
        raise UserError(f"{order['path']} says {loaded.num_classes} classes, but the model answers {classes} numbers")
    described = {
        "name": loaded.name,
        "version": loaded.version,
        "num_classes": loaded.num_classes,
        "labels": list(loaded.class_names),
        "preprocessing": loaded.preprocessing.to_json(),
        "engine": fitted.engine,
        "precision": fitted.precision,
        "fitted": fitted.to_json(),
        "note": "\n".join(fitted.notes),
        "chosen": loaded.spec.get("chosen", ""),
        "sizes": sizes,
        "abstain_below": loaded.abstain_below,
        "thresholds": loaded.thresholds,
    }
    return engine, described


def _send_json(connection: socket.socket, document: dict[str, Any]) -> None:
    ipc.send(connection, 0, json.dumps(document).encode())


if __name__ == "__main__":
    try:
        code = main(int(sys.argv[1]))
        sys.stdout.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    # Engines keep threads that may hang in an orderly shutdown of the interpreter; there is nothing left to save.
    os._exit(code)
