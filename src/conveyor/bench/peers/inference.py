"""One inference engine in one process, one batch size after the other.

The engines that are called directly get float32 images, normalised and in their fastest memory format, made beforehand;
Conveyor's gets 8-bit images and normalises them itself. 8-bit models are made as each library's own guide says, with
random images: speeds do not depend on the ranges.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protocol import serve_batches, settings, unavailable

Step = Callable[[], Any]


def main() -> None:
    asked = settings()
    if asked["engine"].startswith("quantize-"):
        {"quantize-onnxruntime": quantize_onnxruntime, "quantize-openvino": quantize_openvino}[asked["engine"]](asked)
        return
    try:
        make = ENGINES[asked["engine"]](asked)
    except ImportError as error:
        unavailable(error)
    serve_batches(make, lambda batch: {"chosen": CHOSEN.get(batch)})


CALIBRATION = 4
"""Images that set the ranges of 8-bit models."""
CHOSEN: dict[int, str] = {}
"""The engine that `auto` chose for each batch, for the record."""


def _model(asked: dict[str, Any]) -> Any:
    import torch

    from conveyor.models import build

    torch.manual_seed(0)
    torch.set_num_threads(asked["threads"])
    return build(asked["model"]).eval()


def _images(asked: dict[str, Any], batch: int) -> Any:
    import torch

    return torch.randn(batch, 3, asked["image_size"], asked["image_size"])


def torch_eager(asked: dict[str, Any]) -> Callable[[int], Step]:
    import torch

    from plain_pytorch import with_torch_layers

    model = with_torch_layers(_model(asked)).eval()
    form = torch.channels_last if asked.get("channels_last") else torch.contiguous_format
    model = model.to(memory_format=form)
    half = asked.get("precision") == "bfloat16"
    if asked.get("compile"):
        import torch._inductor.config as inductor

        inductor.freezing = True
        model = torch.compile(model, dynamic=False)

    def make(batch: int) -> Step:
        images = _images(asked, batch).to(memory_format=form)

        def step() -> None:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
                model(images)

        return step

    return make


def onnx_file(asked: dict[str, Any]) -> Path:
    """The network as its user would export it, with any batch size; written once for all programs."""
    import os
    import warnings

    import torch

    path = Path(asked["folder"]) / f"{asked['model']}-{asked['image_size']}.onnx"
    if not path.exists():
        warnings.filterwarnings("ignore")
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        free = ({0: torch.export.Dim("batch", min=1, max=4096)},)
        program = torch.onnx.export(
            _model(asked), (_images(asked, 2),), dynamo=True, dynamic_shapes=free, input_names=["x"], verbose=False
        )
        assert program is not None
        temporary.write_bytes(program.model_proto.SerializeToString())
        temporary.rename(path)
    return path


def quantized_file(asked: dict[str, Any]) -> Path:
    """The 8-bit model of this library, made in a process of its own: quantisers can corrupt the heap of their process."""
    suffix = {"onnxruntime": ".int8.onnx", "openvino": ".int8.xml"}[asked["engine"]]
    path = onnx_file(asked).with_suffix(suffix)
    if not path.exists():
        order = json.dumps({**asked, "engine": f"quantize-{asked['engine']}", "out": str(path)})
        done = subprocess.run([sys.executable, __file__, order], capture_output=True, text=True)
        if not path.exists():
            raise ImportError((done.stderr.strip().splitlines() or ["the model could not be quantised"])[-1])
    return path


def quantize_onnxruntime(asked: dict[str, Any]) -> None:
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter(_images(asked, CALIBRATION).split(1))

        def get_next(self) -> dict[str, Any] | None:
            part = next(self._left, None)
            return None if part is None else {"x": part.numpy()}

    prepared = f"{asked['out']}.prepared"
    quant_pre_process(str(onnx_file(asked)), prepared, skip_symbolic_shape=True)
    quantization.quantize_static(prepared, asked["out"], Reader(), per_channel=True)


def quantize_openvino(asked: dict[str, Any]) -> None:
    import nncf
    import openvino as ov

    parts = [part.numpy() for part in _images(asked, CALIBRATION).split(1)]
    model = nncf.quantize(ov.Core().read_model(str(onnx_file(asked))), nncf.Dataset(parts), subset_size=len(parts))
    ov.save_model(model, asked["out"], compress_to_fp16=False)


def onnx_runtime(asked: dict[str, Any]) -> Callable[[int], Step]:
    import onnxruntime

    path = str(quantized_file(asked) if asked.get("precision") == "int8" else onnx_file(asked))

    def make(batch: int) -> Step:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = asked["threads"]
        options.add_free_dimension_override_by_name("batch", batch)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = {"x": _images(asked, batch).numpy()}
        return lambda: session.run(None, inputs)

    return make


def openvino(asked: dict[str, Any]) -> Callable[[int], Step]:
    import openvino as ov

    core = ov.Core()
    int8 = asked.get("precision") == "int8"
    hints = {
        "INFERENCE_NUM_THREADS": asked["threads"],
        "INFERENCE_PRECISION_HINT": "bf16" if asked.get("precision") == "bfloat16" else "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    if int8:
        del hints["INFERENCE_PRECISION_HINT"]  # the library's own choice for what is not quantised
    path = str(quantized_file(asked) if int8 else onnx_file(asked))

    def make(batch: int) -> Step:
        model = core.read_model(path)
        model.reshape([batch, 3, asked["image_size"], asked["image_size"]])
        request = core.compile_model(model, "CPU", hints).create_infer_request()
        images = _images(asked, batch).numpy()
        return lambda: request.infer([images], share_inputs=True, share_outputs=True)

    return make


def conveyor(asked: dict[str, Any]) -> Callable[[int], Step]:
    import numpy as np

    from conveyor.infer.engines.engine import Source, open_engine
    from conveyor.infer.graph import serving_graph
    from conveyor.infer.measure_speed import in_precision
    from conveyor.infer.preprocessing import Preprocessing

    size = asked["image_size"]
    about = Preprocessing(image_size=size, channels=3, normalization="imagenet")
    source = in_precision(Source(about, graph=serving_graph(_model(asked), about)), asked.get("precision"))

    def make(batch: int) -> Step:
        engine = open_engine(source, "auto", batch=batch, threads=asked["threads"])
        CHOSEN[batch] = engine.name
        images = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3), dtype=np.uint8)
        return lambda: engine(images)

    return make


ENGINES: dict[str, Callable[[dict[str, Any]], Callable[[int], Step]]] = {
    "torch": torch_eager,
    "onnxruntime": onnx_runtime,
    "openvino": openvino,
    "conveyor": conveyor,
}

if __name__ == "__main__":
    main()
