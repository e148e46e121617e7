"""`/openapi.json`: the HTTP addresses of this server, as OpenAPI 3.1 describes them."""

from typing import Any

from conveyor.serve.model import ServedModel
from conveyor.version import __version__

ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
BEST = {
    "type": "object",
    "required": ["class", "label", "probability"],
    "properties": {
        "class": {"type": "integer", "description": "Number of the class."},
        "label": {"type": "string"},
        "probability": {"type": "number", "minimum": 0, "maximum": 1},
    },
}
ANSWER = {
    "type": "object",
    "required": ["model", "version", "best", "milliseconds"],
    "properties": {
        "model": {"type": "string"},
        "version": {"type": "string"},
        "best": {
            "type": "array",
            "items": {"$ref": "#/components/schemas/Best"},
            "description": "Most probable first.",
        },
        "labels": {
            "type": "array",
            "items": {"$ref": "#/components/schemas/Best"},
            "description": "Of a multi-label model: all classes above their thresholds.",
        },
        "abstains": {"type": "boolean", "description": "The model is less sure than its export asks for."},
        "milliseconds": {"type": "number", "description": "From the arrival of the request to its answer."},
    },
}
REFUSALS = {
    "400": "No image, or one that cannot be decoded.",
    "401": "The token is missing or wrong.",
    "408": "The request did not arrive in time.",
    "413": "The request or its image is too large.",
    "429": "Too many images wait: try again after Retry-After seconds.",
    "503": "No model is ready.",
}


def document(model: ServedModel) -> dict[str, Any]:
    """The description, with the name of the model in service."""
    name = model.name
    picture = {"schema": {"type": "string", "format": "binary"}}
    kinds = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
    classify = {
        "summary": "Classify one photograph.",
        "description": "The body is the file itself: JPEG, PNG, WebP, GIF, BMP, TIFF or PPM. The header Server-Timing tells "
        "the milliseconds of receive, decode, queue, infer and encode, which add up to the whole.",
        "requestBody": {"required": True, "content": dict.fromkeys(kinds, picture)},
        "responses": _responses(
            "The five most probable classes, and all labels of a multi-label model.",
            {"$ref": "#/components/schemas/Answer"},
        ),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Conveyor: {name}", "version": __version__},
        "paths": {
            "/classify": {"post": classify},
            f"/v2/models/{name}/infer": {"post": _tensors("Open Inference Protocol v2: tensors as JSON or binary.")},
            f"/v1/models/{name}:predict": {"post": _tensors("TensorFlow Serving's form: instances as JSON.")},
            f"/v2/models/{name}": {"get": _plain("Inputs and outputs of the model.")},
            "/v2/health/ready": {"get": _plain("Whether requests are answered.")},
            "/v2/health/live": {"get": _plain("Whether the server runs.")},
            "/metrics": {"get": {"summary": "Prometheus metrics.", "responses": {"200": {"description": "Text."}}}},
        },
        "components": {
            "schemas": {"Answer": ANSWER, "Best": BEST, "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _responses(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    wrong = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refusals = {status: {"description": why, "content": wrong} for status, why in REFUSALS.items()}
    return {"200": {"description": text, "content": {"application/json": {"schema": schema}}}, **refusals}


def _tensors(text: str) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
    return {
        "summary": text,
        "requestBody": body,
        "responses": _responses("Logits and probabilities.", {"type": "object"}),
    }


def _plain(text: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    return {"summary": text, "responses": {"200": {"description": text, "content": content}}}
