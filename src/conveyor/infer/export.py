"""Write a model as ONNX, OpenVINO or PyTorch files, compared with the original before it is declared good."""

import copy
import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from conveyor.errors import UserError, did_you_mean
from conveyor.infer import metadata
from conveyor.infer.convert import example_input, quiet, to_onnx
from conveyor.infer.engine import Source, open_named
from conveyor.infer.graph import ServingGraph, serving_graph
from conveyor.infer.loaded import Loaded
from conveyor.infer.metadata import INPUT, OUTPUT
from conveyor.infer.target import check_target, folder_at_once
from conveyor.version import __version__

TOLERANCE = 1e-3
"""Largest accepted difference of a logit, relative to the largest logit (float32 sums in another order)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What was written and how close it is to the original."""

    folder: Path
    format: str
    batch: int | None
    difference: float
    """Largest difference between a logit of the export and of the model."""
    compared: int
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        batch = "any batch" if self.batch is None else f"batch {self.batch}"
        return (
            f"{self.folder}: {self.format}, {batch}, uint8 images in, logits out; "
            f"largest difference to the model {self.difference:.2g} over {self.compared} images"
        )


def export(
    loaded: Loaded,
    out: str | Path | None,
    form: str = "onnx",
    *,
    batch: int | None = None,
    quantize: Callable[[Source, Path, str], list[str]] | None = None,
    images: NDArray[np.uint8] | None = None,
) -> Exported:
    """Write `loaded` to the new folder `out`; `batch` fixes the batch size, none leaves it free.

    `quantize(source, model file, format)` may replace the written model by an 8-bit one and returns notes.
    `images` are compared besides random ones.
    """
    if form not in metadata.FORMATS:
        raise UserError(f"there is no export format {form!r}{did_you_mean(form, metadata.FORMATS)}")
    target = check_target(out)
    source = loaded.source()
    if source.graph is None:
        raise UserError("this is already an export in another format: export the run or the checkpoint it came from")
    document: dict[str, Any] = {
        **loaded.spec,
        "conveyor": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "format": form,
        "precision": "float32" if quantize is None else "int8",
        "batch": batch,
        "input": {"name": INPUT, "datatype": "uint8", "shape": [batch or -1, *loaded.preprocessing.image_shape]},
        "output": {"name": OUTPUT, "datatype": "float32", "shape": [batch or -1, loaded.num_classes]},
        "labels": list(loaded.class_names),
        "preprocessing": loaded.preprocessing.to_json(),
    }
    with folder_at_once(target) as folder:
        file = folder / metadata.MODEL_FILES[form]
        _write_model(source.graph, loaded, file, form, batch)
        notes: list[str] = []
        if quantize is not None:
            notes = quantize(source, file, form)
        stored = _stored_source(loaded, file, form, batch)
        difference, largest, compared = compare(source, stored, batch, images)
        if quantize is None and difference > TOLERANCE * max(largest, 1.0):
            raise UserError(
                f"the exported model differs from the original by {difference:.3g} (largest logit {largest:.3g}): "
                "nothing was written; try another --format"
            )
        metadata.write(folder, {**document, "max_difference": difference, "compared_images": compared, "notes": notes})
    return Exported(target, form, batch, difference, compared, tuple(notes))


def compare(
    model: Source, stored: Source, batch: int | None, images: NDArray[np.uint8] | None = None
) -> tuple[float, float, int]:
    """(largest difference of a logit, largest logit, images compared) of the stored model against the one in memory.

    Random, black and white images; with a free batch also a second batch size, since a fixed one may hide in a graph.
    """
    shape = model.preprocessing.image_shape
    drawn = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    drawn[3], drawn[4] = 0, 255
    everything = drawn if images is None else np.concatenate([drawn, images])
    reference = open_named(model, "torch", batch=1, threads=1)
    expected = reference(everything)
    engine = open_named(stored, stored.engines()[0], batch=batch or len(everything), threads=1)
    answers = [engine(everything)]
    if batch is None:
        answers.append(np.concatenate([engine(everything[:1]), answers[0][1:]]))
    engine.close()
    difference = max(float(np.abs(answer - expected).max()) for answer in answers)
    return difference, float(np.abs(expected).max()), len(everything)


def _write_model(graph: ServingGraph, loaded: Loaded, file: Path, form: str, batch: int | None) -> None:
    if form == "torch":
        _write_torch(graph, loaded, file, batch)
        return
    try:
        content = to_onnx(graph, batch)
    except ImportError as error:
        raise UserError(f"exporting as {form} needs more packages (pip install onnx onnxscript): {error}") from error
    if form == "onnx":
        file.write_bytes(content)
        return
    try:
        import openvino
    except ImportError:
        raise UserError("exporting as openvino needs the package openvino: pip install openvino") from None
    model = openvino.Core().read_model(model=content, weights=b"")
    openvino.save_model(model, str(file), compress_to_fp16=False)


def _write_torch(graph: ServingGraph, loaded: Loaded, file: Path, batch: int | None) -> None:
    """Weights as safetensors, from which this program rebuilds the model; beside them the traced program for others.

    Only the safetensors file is ever read back here: a program archive may hold more than numbers.
    """
    assert loaded.module is not None
    state = {name: tensor.detach().contiguous().clone() for name, tensor in loaded.module.state_dict().items()}
    save_file(state, str(file))
    example, free = example_input(graph, batch)
    with quiet():
        torch.export.save(
            torch.export.export(graph, (example,), dynamic_shapes=free), str(file.with_name("program.pt2"))
        )


def _stored_source(loaded: Loaded, file: Path, form: str, batch: int | None) -> Source:
    """The written file as an engine will see it."""
    if form == "torch":
        again = copy.deepcopy(loaded.module)
        assert again is not None
        again.load_state_dict(load_file(str(file)))
        return Source(loaded.preprocessing, graph=serving_graph(again, loaded.preprocessing))
    onnx = file if form == "onnx" else None
    return Source(loaded.preprocessing, onnx=onnx, openvino=None if onnx else file, batch=batch)
