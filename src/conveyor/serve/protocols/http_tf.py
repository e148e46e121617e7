"""TensorFlow Serving's REST interface: `instances` row by row, or `inputs` as one tensor; photographs as base64."""

import binascii
from base64 import b64decode
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from conveyor.serve.errors import Refused
from conveyor.serve.protocols.arrays import as_images
from conveyor.serve.protocols.images import not_json
from conveyor.serve.service import Asked, Service

SIGNATURE = "serving_default"
NAMES = ("images", "input", "input_0", "image_bytes", "image", "b64")


def status(service: Service, name: str, version: str | None = None) -> dict[str, Any]:
    """The state of the version in service, and of a newer one that was not taken into service."""
    found = []
    rejected = service.rejected
    if rejected is not None and version in (None, rejected[0]):
        why = {"error_code": "FAILED_PRECONDITION", "error_message": rejected[1]}
        found.append({"version": rejected[0], "state": "END", "status": why})
    if not found or version is None:
        model = service.model(name, version)
        state = "AVAILABLE" if service.ready else "UNLOADING"
        found.insert(0, {"version": model.version, "state": state, "status": {"error_code": "OK", "error_message": ""}})
    service.model(name)
    return {"model_version_status": found}


async def predict(service: Service, asked: Asked, body: bytes) -> bytes:
    """The answer to one `:predict` request."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise not_json(body, error) from None
    if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
        raise Refused("the request must be an object with either 'instances' or 'inputs'")
    if request.get("signature_name", SIGNATURE) not in (SIGNATURE, "", None):
        raise Refused(f"there is no signature {str(request['signature_name'])[:60]!r}: it is called {SIGNATURE!r}")
    rows = "instances" in request
    given = request["instances"] if rows else request["inputs"]
    images = await _images(service, asked, given, rows)
    logits = (await service.infer(asked, images)).tolist()
    return orjson.dumps({"predictions": logits} if rows else {"outputs": logits})


async def _images(service: Service, asked: Asked, given: Any, rows: bool) -> NDArray[np.uint8]:
    shape = asked.model.preprocessing.image_shape
    if not rows:
        given = _unwrapped(given)
        given = [given] if isinstance(given, dict) else given
    if not isinstance(given, list) or not given:
        raise Refused("'instances' and 'inputs' must be lists with at least one image")
    given = [_unwrapped(each) for each in given]
    encoded = [isinstance(each, dict) for each in given]
    if all(encoded):
        return await service.decode(asked, [_from_base64(each) for each in given])
    if any(encoded):
        raise Refused("numbers and base64 photographs cannot be mixed in one request")
    images = as_images(given, shape)
    if rows and len(images) != len(given):
        raise Refused(f"each instance must be one image of shape {list(shape)}")
    return images


def _unwrapped(value: Any) -> Any:
    """`{"images": x}` is x: rows may name the input, as they must where a model has several."""
    if isinstance(value, dict) and len(value) == 1:
        name, inner = next(iter(value.items()))
        if name not in NAMES:
            raise Refused(f"there is no input {name[:60]!r}: it is called 'images'")
        return value if name == "b64" else inner
    return value


def _from_base64(value: dict[str, Any]) -> bytes:
    text = value.get("b64")
    if len(value) != 1 or not isinstance(text, str):
        raise Refused('a photograph is sent as {"b64": "..."}')
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refused("the text behind 'b64' is not base64") from None
