"""8-bit models by post-training quantisation with real calibration images, kept between runs."""

import hashlib
import json
import os
import shutil
import subprocess
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor import scratch
from conveyor.errors import UserError
from conveyor.files import cache_folder
from conveyor.infer.engines.engine import Source
from conveyor.infer.target import replacing_folder
from conveyor.measure.remembered import key_of, version
from conveyor.processes import of_module

MOST_KEPT = 8
"""8-bit models in the cache folder; beyond, those that were used longest ago are removed."""
FILE = "model.onnx"
RECIPE = 2
"""Raised when the same order gives another file, so that older files are not taken for it."""
_digests: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()


def int8_file(
    source: Source, images: NDArray[np.uint8], batch: int | None, bits: int, kept: Sequence[str] = ()
) -> Path:
    """The 8-bit ONNX file of a float32 source, made now unless it is known; the nodes `kept` stay in float."""
    versions = [version(name) for name in ("torch", "onnxruntime")]
    key = key_of(RECIPE, digest(source), digest_of(images), batch, bits, list(kept), versions)
    folder = cache_folder() / "int8" / key
    if not (folder / FILE).is_file():
        _remove_oldest(folder.parent)
        with replacing_folder(folder) as made:
            run_apart(source, images, batch, out=str(made / FILE), bits=bits, kept=list(kept))
    os.utime(folder)
    return folder / FILE


def _remove_oldest(folder: Path) -> None:
    """Remove the least recently used models, so that one more fits."""
    known = sorted(folder.glob("*"), key=lambda each: each.stat().st_mtime) if folder.is_dir() else []
    for old in known[: max(0, len(known) - MOST_KEPT + 1)]:
        shutil.rmtree(old, ignore_errors=True)


def ranked_layers(source: Source, images: NDArray[np.uint8], batch: int | None) -> list[tuple[str, str]]:
    """(ONNX node, layer) of what can be quantised, those that lose most by it first."""
    found: list[list[Any]] = json.loads(run_apart(source, images, batch))
    return [(str(node), str(layer)) for node, layer, _ in found]


def run_apart(source: Source, images: NDArray[np.uint8], batch: int | None, **order: Any) -> str:
    """`quantize_process` in a process of its own; returns what it prints.

    The quantiser imports a large framework, writes to the root logger and has been seen to damage the heap of its
    process, which then crashes later and elsewhere; if it crashes, the caller gets a `UserError`.
    """
    with scratch.folder("int8") as folder:
        np.save(folder / "images.npy", images)
        file = folder / "float32.onnx"
        if source.onnx is not None:
            file = source.onnx
        elif source.graph is not None:
            from conveyor.infer.engines.convert import to_onnx

            file.write_bytes(to_onnx(source.graph, batch))
        else:
            raise UserError("an OpenVINO export cannot be quantised: use the run it came from")
        order |= {"file": str(file), "images": f"{folder}/images.npy", "batch": batch}
        done = subprocess.run(
            of_module("conveyor.infer.quantize_process", json.dumps(order)), capture_output=True, text=True
        )
    if done.returncode == 0:
        return done.stdout
    words = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
    raise UserError(
        words if done.returncode == 2 else f"the model could not be quantised: {words}; take another --infer-precision"
    )


def digest(source: Source) -> str:
    """What a source holds, weights included; two with the same digest give the same answers."""
    if source.graph is None:
        file = source.onnx or source.openvino
        assert file is not None
        parts = [file, *([file.with_suffix(".bin")] if file.suffix == ".xml" else [])]
        return hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()
    if source.graph not in _digests:
        found = hashlib.sha256(str(getattr(source.graph.network, "code", type(source.graph.network).__name__)).encode())
        for name, tensor in [*source.graph.named_buffers(), *source.graph.named_parameters()]:
            found.update(name.encode())
            found.update(tensor.detach().contiguous().numpy().tobytes())
        _digests[source.graph] = found.hexdigest()
    return _digests[source.graph]


def digest_of(values: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
