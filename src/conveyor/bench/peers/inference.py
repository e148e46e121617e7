"""Inference engines called directly: torch (eager, channels_last, compiled), ONNX Runtime, OpenVINO, and Conveyor's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from protocol import serve, settings, unavailable


def main() -> None:
    asked = settings()
    try:
        step = ENGINES[asked["engine"]](asked)
    except ImportError as error:
        unavailable(error)
        return
    serve(step, asked["batch"], asked.get("warmup", 3))


def _model(asked: dict[str, Any]) -> Any:
    import torch

    from conveyor.models import build

    torch.manual_seed(0)
    torch.set_num_threads(asked["threads"])
    return build(asked["model"]).eval()


def _images(asked: dict[str, Any]) -> Any:
    import torch

    return torch.randn(asked["batch"], 3, asked["image_size"], asked["image_size"])


def torch_eager(asked: dict[str, Any]) -> Callable[[], None]:
    import torch

    model, images = _model(asked), _images(asked)
    if asked.get("channels_last"):
        model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    run = torch.compile(model) if asked.get("compile") else model

    def step() -> None:
        with torch.inference_mode():
            run(images)

    return step


def _onnx_file(asked: dict[str, Any], folder: str) -> str:
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    path = str(Path(folder) / "model.onnx")
    torch.onnx.export(_model(asked), (_images(asked),), path, dynamo=True, verbose=False)
    return path


def onnx_runtime(asked: dict[str, Any]) -> Callable[[], None]:
    import tempfile

    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = asked["threads"]
    with tempfile.TemporaryDirectory() as folder:
        session = onnxruntime.InferenceSession(_onnx_file(asked, folder), options, providers=["CPUExecutionProvider"])
    inputs = {session.get_inputs()[0].name: _images(asked).numpy()}
    return lambda: session.run(None, inputs) and None


def openvino(asked: dict[str, Any]) -> Callable[[], None]:
    import tempfile

    import openvino as ov

    with tempfile.TemporaryDirectory() as folder:
        core = ov.Core()
        hints = {
            "INFERENCE_NUM_THREADS": asked["threads"],
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = core.compile_model(core.read_model(_onnx_file(asked, folder)), "CPU", hints)
    request = compiled.create_infer_request()
    images = _images(asked).numpy()
    return lambda: request.infer([images], share_inputs=True, share_outputs=True) and None


def conveyor(asked: dict[str, Any]) -> Callable[[], None]:
    import torch

    from conveyor.infer.engine import open_engine
    from conveyor.infer.preprocessing import Preprocessing

    size = asked["image_size"]
    preprocessing = Preprocessing(image_size=size, channels=3, normalization="imagenet")
    engine = open_engine(
        _model(asked),
        asked.get("choice", "auto"),
        batch=asked["batch"],
        threads=asked["threads"],
        preprocessing=preprocessing,
    )
    images = torch.randint(0, 256, (asked["batch"], size, size, 3), dtype=torch.uint8).numpy()

    def step() -> None:
        engine(images)

    return step


ENGINES: dict[str, Callable[[dict[str, Any]], Callable[[], None]]] = {
    "torch": torch_eager,
    "onnxruntime": onnx_runtime,
    "openvino": openvino,
    "conveyor": conveyor,
}

if __name__ == "__main__":
    main()
