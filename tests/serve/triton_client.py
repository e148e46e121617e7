"""Asks a server with Triton's own client, unmodified, in every way it has; prints the logits as JSON.

Runs in an environment of its own: the client wants another protobuf than ours, and its stubs have the names of ours.
Arguments: HTTP port, gRPC port, name of the model, file with the images.
"""

import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http


def ask(protocol: Any, address: str, model: str, images: np.ndarray) -> dict[str, Any]:
    client = protocol.InferenceServerClient(address)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(model)
    given = protocol.InferInput("images", list(images.shape), "UINT8")
    given.set_data_from_numpy(images)
    logits = protocol.InferRequestedOutput("logits")
    best = protocol.InferRequestedOutput("logits", class_count=2)
    answers = {
        "plain": client.infer(model, [given]),
        "one output": client.infer(model, [given], outputs=[logits], request_id="7"),
        "this version": client.infer(model, [given], model_version="1"),
    }
    found = {name: answer.as_numpy("logits").tolist() for name, answer in answers.items()}
    classes = client.infer(model, [given], outputs=[best]).as_numpy("logits")
    return {"logits": found, "classes": [[text.decode() for text in image] for image in classes]}


def ask_http(address: str, model: str, images: np.ndarray) -> dict[str, Any]:
    """The binary form as for gRPC, and what only HTTP has: numbers as JSON, either way, and requests under way."""
    found = ask(tritonclient.http, address, model, images)
    client = tritonclient.http.InferenceServerClient(address, concurrency=4)
    written = tritonclient.http.InferInput("images", list(images.shape), "UINT8")
    written.set_data_from_numpy(images, binary_data=False)
    as_json = tritonclient.http.InferRequestedOutput("logits", binary_data=False)
    found["logits"]["JSON"] = client.infer(model, [written], outputs=[as_json]).as_numpy("logits").tolist()
    under_way = [client.async_infer(model, [written]) for _ in range(8)]
    for number, request in enumerate(under_way):
        found["logits"][f"under way {number}"] = request.get_result().as_numpy("logits").tolist()
    return found


def main() -> None:
    http_port, grpc_port, model, file = sys.argv[1:]
    images = np.load(file)
    found = {
        "http": ask_http(f"127.0.0.1:{http_port}", model, images),
        "grpc": ask(tritonclient.grpc, f"127.0.0.1:{grpc_port}", model, images),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
