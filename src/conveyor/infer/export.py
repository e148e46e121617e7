"""Write a model as ONNX, OpenVINO, PyTorch or SavedModel files, compared with the original before it is declared good."""

import copy
import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from conveyor.errors import UserError, did_you_mean, needed
from conveyor.infer import AnswerPrecision, metadata
from conveyor.infer.engines.convert import example_input, quiet, to_onnx
from conveyor.infer.engines.engine import Engine, Source, open_named
from conveyor.infer.graph import ServingGraph, serving_graph
from conveyor.infer.loaded import Loaded
from conveyor.infer.metadata import INPUT, OUTPUT
from conveyor.infer.precision import Fit
from conveyor.infer.target import check_target, replacing_folder
from conveyor.version import __version__

TOLERANCE = 1e-3
"""Largest accepted difference of a logit, relative to the largest logit (float32 sums in another order)."""
LEAST_AGREEMENT = 0.5
"""Of a bfloat16 or 8-bit model, whose accuracy is measured on its own images: the share with the original's answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """How close a stored model is to the original, whatever the scale of its logits."""

    relative: float
    """Largest difference of a logit, in units of the largest logit."""
    largest: float
    agreed: int
    """Images with the same answer; one whose logit is within `TOLERANCE` of the best counts as the same."""
    images: int

    @classmethod
    def of(cls, expected: NDArray[np.float32], answers: Sequence[NDArray[np.float32]]) -> "Comparison":
        """`answers` in several batch sizes to the same images, of which the worst counts; not finite is never close."""
        largest = float(np.abs(expected).max())
        difference = max(float(np.abs(answer - expected).max()) for answer in answers)
        rows = np.arange(len(expected))
        best = expected.max(axis=1) - TOLERANCE * largest
        agreed = min(int((expected[rows, answer.argmax(axis=1)] >= best).sum()) for answer in answers)
        relative = 0.0 if difference == 0 else difference / max(largest, float(np.finfo(np.float32).tiny))
        finite = all(bool(np.isfinite(values).all()) for values in (expected, *answers))
        return cls(relative if finite else float("inf"), largest, agreed, len(expected))

    def is_good(self, *, exact: bool) -> bool:
        if not exact:
            return self.relative < float("inf") and self.agreed >= LEAST_AGREEMENT * self.images
        return self.relative <= TOLERANCE and self.agreed == self.images

    def text(self) -> str:
        return (
            f"largest difference to the model {self.relative:.2g} of its largest logit ({self.largest:.3g}), "
            f"the same answer for {self.agreed} of {self.images} images"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What was written and how close it is to the original."""

    folder: Path
    format: str
    batch: int | None
    comparison: Comparison
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        batch = "any batch" if self.batch is None else f"batch {self.batch}"
        return f"{self.folder}: {self.format}, {batch}, uint8 images in, logits out; {self.comparison.text()}"


def export(
    loaded: Loaded,
    out: str | Path | None,
    form: str = "onnx",
    *,
    batch: int | None = None,
    fitted: Fit | None = None,
) -> Exported:
    """Write `loaded` to the new folder `out`; `batch` fixes the batch size, none leaves it free.

    `fitted` says in which precision it is to answer; what was measured of that is stored with it.
    """
    if form not in metadata.FORMATS:
        raise UserError(f"there is no export format {form!r}{did_you_mean(form, metadata.FORMATS)}")
    target = check_target(out)
    source = loaded.source
    if source.graph is None:
        raise UserError("this is already an export in another format: export the run or the checkpoint it came from")
    precision = AnswerPrecision.FLOAT32 if fitted is None else fitted.precision
    if precision == AnswerPrecision.INT8 and form not in ("onnx", "openvino"):
        raise UserError("8-bit models are written as onnx or openvino: add --format onnx or --format openvino")
    document: dict[str, Any] = {
        **loaded.spec,
        "conveyor": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "format": form,
        "precision": precision,
        "measured": {} if fitted is None else fitted.measured,
        "batch": batch,
        "input": {"name": INPUT, "datatype": "uint8", "shape": [batch or -1, *loaded.preprocessing.image_shape]},
        "output": {"name": OUTPUT, "datatype": "float32", "shape": [batch or -1, loaded.num_classes]},
        "labels": list(loaded.class_names),
        "preprocessing": loaded.preprocessing.to_json(),
    }
    with replacing_folder(target) as folder:
        file = folder / metadata.MODEL_FILES[form]
        if fitted is not None and precision == AnswerPrecision.INT8:
            assert fitted.source.onnx is not None
            _write_onnx(fitted.source.onnx.read_bytes(), file, form)
        else:
            _write_model(source.graph, loaded, file, form, batch)
        notes = [] if fitted is None else list(fitted.notes)
        found = compare(source, _stored(loaded, file, form, batch, precision), batch)
        if not found.is_good(exact=precision == AnswerPrecision.FLOAT32):
            raise UserError(
                f"the exported model differs from the original ({found.text()}): nothing was written; "
                + _cure(source.graph, found)
            )
        compared = {
            "relative_difference": found.relative,
            "same_answers": found.agreed,
            "compared_images": found.images,
        }
        metadata.write(folder, {**document, **compared, "notes": notes})
    return Exported(target, form, batch, found, tuple(notes))


def _cure(graph: ServingGraph, found: Comparison) -> str:
    """Another format is one where the format is at fault, not where float32 alone moves the logits as far.

    That is so where norm statistics do not fit the images yet, as after few updates: signals grow from layer to layer, and
    rounding errors with them.
    """
    images = torch.from_numpy(_images(graph.preprocessing.image_shape))
    with torch.inference_mode():
        exact = copy.deepcopy(graph).double()(images).numpy()
        rounding = Comparison.of(exact, [graph(images).numpy()]).relative
    if rounding < found.relative / 10:
        return "try another --format"
    return (
        f"the model's own answers in float32 are {rounding:.2g} away from those in float64: train it for more updates, so "
        "that its norm statistics fit its images"
    )


def _images(shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Three of random pixels, a black and a white one."""
    images = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    images[3], images[4] = 0, 255
    return images


def compare(model: Source, stored: Engine, batch: int | None) -> Comparison:
    """The stored model against the one in memory; with a free batch in two batch sizes, as a graph may hold a fixed one."""
    everything = _images(model.preprocessing.image_shape)
    reference = open_named(model, "torch", batch=1, threads=1)
    expected = reference(everything)
    answers = [stored(everything)]
    if batch is None:
        answers.append(np.concatenate([stored(everything[:1]), answers[0][1:]]))
    stored.close()
    return Comparison.of(expected, answers)


def _write_model(graph: ServingGraph, loaded: Loaded, file: Path, form: str, batch: int | None) -> None:
    if form == "torch":
        _write_torch(graph, loaded, file, batch)
        return
    try:
        content = to_onnx(graph, batch)
    except ImportError as error:
        raise UserError(f"exporting as {form} needs more packages ({error}): pip install 'conveyor[export]'") from error
    _write_onnx(content, file, form)


def _write_onnx(content: bytes, file: Path, form: str) -> None:
    """An ONNX model in the form that was asked for."""
    if form != "openvino":
        file.write_bytes(content)
        if form == "saved-model":
            from conveyor.infer.saved_model import write_saved_model

            write_saved_model(file, file.parent)
        return
    openvino = needed("openvino", "exporting as openvino", "export")
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


def _stored(loaded: Loaded, file: Path, form: str, batch: int | None, precision: AnswerPrecision) -> Engine:
    """The written model, opened by the library that its format is for."""
    if form == "saved-model":
        from conveyor.infer.saved_model import SavedModelEngine

        return SavedModelEngine(file.parent, loaded.preprocessing.image_shape, batch)
    if form == "torch":
        again = copy.deepcopy(loaded.module)
        assert again is not None
        again.load_state_dict(load_file(str(file)))
        graph = serving_graph(again, loaded.preprocessing, loaded.temperature)
        source = Source(loaded.preprocessing, graph=graph, precision=precision)
    else:
        source = Source.of_file(loaded.preprocessing, file, batch, precision)
    return open_named(source, source.engines()[0], batch=batch or 5, threads=1)
