"""The Open Inference Protocol, version 2, as JSON with optional binary tensors behind it."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from conveyor.infer import metadata
from conveyor.serve.errors import Refused
from conveyor.serve.model import ServedModel
from conveyor.serve.protocols.arrays import (
    DTYPES,
    as_images,
    checked_shape,
    from_bytes,
    from_lists,
    join_strings,
    split_strings,
)
from conveyor.serve.protocols.images import not_json
from conveyor.serve.service import Asked, Service
from conveyor.version import __version__

INPUT, LOGITS, PROBABILITIES = metadata.INPUT, metadata.OUTPUT, "probabilities"
INPUT_NAMES = (INPUT, "input", "input_0")
"""The input's name and those that clients of exported Keras models use."""
BINARY_HEADER = "Inference-Header-Content-Length"


def server_metadata() -> dict[str, Any]:
    return {"name": "conveyor", "version": __version__, "extensions": ["binary_tensor_data", "classification"]}


def model_metadata(model: ServedModel) -> dict[str, Any]:
    return {  # any number of images is accepted, whatever batch the model was exported with: the server cuts and pads
        "name": model.name,
        "versions": [model.version],
        "platform": f"conveyor_{model.described['engine']}",
        "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, *model.preprocessing.image_shape]}],
        "outputs": [
            {"name": LOGITS, "datatype": "FP32", "shape": [-1, model.num_classes]},
            {"name": PROBABILITIES, "datatype": "FP32", "shape": [-1, model.num_classes]},
        ],
    }


async def infer(service: Service, asked: Asked, body: bytes, header_length: str | None) -> tuple[bytes, dict[str, str]]:
    """The answer to one request and its headers."""
    request, binary = _split(body, header_length)
    tensor = _only_input(request)
    parameters = tensor.get("parameters") or {}
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size != len(binary)):
        raise Refused(f"binary_data_size is {str(size)[:20]}, but {len(binary)} bytes follow the JSON part")
    if size is None and len(binary):
        raise Refused(f"{len(binary)} bytes follow the JSON part, but the input has no binary_data_size")

    def listed(datatype: str) -> NDArray[Any]:
        if datatype == "BYTES" or "data" not in tensor:
            raise Refused("the input has neither 'data' nor binary data, as which photographs are sent")
        return from_lists(tensor["data"])

    raw = None if size is None else binary
    images = await images_of(service, asked, tensor.get("datatype"), tensor.get("shape"), raw, listed)
    logits = await service.infer(asked, images)
    return _answer(asked.model, request, logits)


def _split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON part and the bytes behind it."""
    length = len(body)
    if header_length is not None:
        if (
            not (header_length.isascii() and header_length.isdigit())
            or len(header_length) > 12
            or int(header_length) > len(body)
        ):
            raise Refused(f"{BINARY_HEADER} must be the length of the JSON part, at most {len(body)}")
        length = int(header_length)
    try:
        request = orjson.loads(memoryview(body)[:length])
    except orjson.JSONDecodeError as error:
        raise not_json(body, error) from None
    if not isinstance(request, dict):
        raise Refused("the request must be a JSON object with 'inputs'")
    return request, memoryview(body)[length:]


def _only_input(request: dict[str, Any]) -> dict[str, Any]:
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Refused(f"'inputs' must be a list of one tensor called {INPUT!r}")
    tensor: dict[str, Any] = inputs[0]
    if tensor.get("name") not in INPUT_NAMES:
        raise Refused(f"there is no input {str(tensor.get('name'))[:60]!r}: it is called {INPUT!r}")
    return tensor


async def images_of(
    service: Service,
    asked: Asked,
    datatype: object,
    shape: object,
    raw: bytes | memoryview | None,
    listed: Callable[[str], list[bytes] | NDArray[Any]],
) -> NDArray[np.uint8]:
    """The images of an input tensor, numbers or with type BYTES encoded photographs: in `raw`, or without it as `listed`."""
    sizes = checked_shape(shape)
    if not isinstance(datatype, str) or datatype not in (*DTYPES, "BYTES"):
        raise Refused(f"the data type {str(datatype)[:20]!r} is not one of UINT8, other number types, or BYTES")
    count = math.prod(sizes)
    if datatype == "BYTES" and count > service.settings.queue:
        raise Refused(f"{count} photographs in one request: at most {service.settings.queue} are accepted")
    if raw is None:
        given = listed(datatype)
        found = given.size if isinstance(given, np.ndarray) else len(given)
        if found != count:
            raise Refused(f"the input has {found} values, but its shape is {sizes}")
    else:
        given = split_strings(raw, count) if datatype == "BYTES" else from_bytes(raw, datatype, sizes)
    if isinstance(given, np.ndarray):
        return as_images(given.reshape(sizes), asked.model.preprocessing.image_shape)
    return await service.decode(asked, given)


def wanted_outputs(request: dict[str, Any]) -> list[tuple[str, bool | None, int]]:
    """(name, as binary (none: not said), classification count) of each requested output; all when none is named."""
    default = (request.get("parameters") or {}) if isinstance(request.get("parameters") or {}, dict) else {}
    binary = True if default.get("binary_data_output") is True else None
    outputs = request.get("outputs")
    if outputs is None or outputs == []:
        return [(LOGITS, binary, 0), (PROBABILITIES, binary, 0)]
    if not isinstance(outputs, list) or len(outputs) > 8:
        raise Refused("'outputs' must be a list of at most 8 outputs")
    found = []
    for output in outputs:
        if not isinstance(output, dict) or output.get("name") not in (LOGITS, PROBABILITIES):
            raise Refused(f"there is no such output: they are called {LOGITS!r} and {PROBABILITIES!r}")
        parameters = output.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise Refused("the parameters of an output must be an object")
        classes = parameters.get("classification", 0)
        if not isinstance(classes, int) or isinstance(classes, bool) or classes < 0:
            raise Refused("'classification' must be a number of classes")
        wanted = parameters.get("binary_data", binary)
        found.append((output["name"], wanted if isinstance(wanted, bool) else None, classes))
    return found


def classification(model: ServedModel, values: NDArray[np.float32], count: int) -> list[bytes]:
    """`score:number:label` of the best classes, image after image, as Triton writes them."""
    return [
        f"{score:f}:{index}:{label}".encode()
        for row in values
        for index, label, score in model.best(row, min(count, model.num_classes))
    ]


def outputs(
    model: ServedModel, request: dict[str, Any], logits: NDArray[np.float32]
) -> Iterator[tuple[dict[str, Any], bool | None, list[bytes] | NDArray[np.float32]]]:
    """(description, as binary, values) of each requested output; values are texts where classes are asked for."""
    for name, binary, classes in wanted_outputs(request):
        values = logits if name == LOGITS else model.probabilities(logits)
        if classes:
            words = classification(model, values, classes)
            shape = [len(values), len(words) // len(values)]
            yield {"name": name, "datatype": "BYTES", "shape": shape}, binary, words
        else:
            yield {"name": name, "datatype": "FP32", "shape": list(values.shape)}, binary, values


def raw_bytes(values: list[bytes] | NDArray[np.float32]) -> bytes:
    """Values of `outputs` as they are sent in binary form."""
    return join_strings(values) if isinstance(values, list) else values.astype("<f4").tobytes()


def _answer(model: ServedModel, request: dict[str, Any], logits: NDArray[np.float32]) -> tuple[bytes, dict[str, str]]:
    described, tail = [], []
    for about, binary, values in outputs(model, request, logits):
        if binary:
            tail.append(raw_bytes(values))
            about["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            as_json: Any = [word.decode() for word in values] if isinstance(values, list) else values.ravel().tolist()
            about["data"] = as_json
        described.append(about)
    answer: dict[str, Any] = {"model_name": model.name, "model_version": model.version, "outputs": described}
    if isinstance(request.get("id"), str):
        answer["id"] = request["id"]
    head = orjson.dumps(answer)
    if not tail:
        return head, {"Content-Type": "application/json"}
    return head + b"".join(tail), {"Content-Type": "application/octet-stream", BINARY_HEADER: str(len(head))}
