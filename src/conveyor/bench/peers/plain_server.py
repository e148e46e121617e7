"""A minimal server for comparison: FastAPI, uvicorn, one ONNX Runtime session, a request at a time per thread.

It implements enough of the Open Inference Protocol (binary tensors) for `conveyor request --protocol http`.
"""

import json
import socket
from pathlib import Path
from typing import Any

from protocol import settings, unavailable


def main() -> None:
    asked = settings()
    try:
        import fastapi
        import numpy as np
        import onnxruntime
        import uvicorn
    except ImportError as error:
        unavailable(error)
    session = onnxruntime.InferenceSession(asked["onnx"], providers=["CPUExecutionProvider"])
    taken = session.get_inputs()[0]
    app = fastapi.FastAPI()

    @app.get("/v2/models/plain")
    def metadata() -> dict[str, Any]:
        return {"name": "plain", "inputs": [{"name": taken.name, "shape": [-1, *taken.shape[1:]]}]}

    def run(images: Any) -> bytes:
        logits = session.run(None, {taken.name: images})[0]
        head = json.dumps({"outputs": [{"name": "logits", "datatype": "FP32", "shape": list(logits.shape)}]}).encode()
        return len(head).to_bytes(4, "little") + head + logits.tobytes()

    @app.post("/v2/models/plain/infer")
    async def infer(request: fastapi.Request) -> fastapi.Response:
        body = await request.body()
        length = int(request.headers["inference-header-content-length"])
        shape = json.loads(body[:length])["inputs"][0]["shape"]
        images = np.frombuffer(body, np.uint8, offset=length).reshape(shape)
        answer = await fastapi.concurrency.run_in_threadpool(run, images)
        size = int.from_bytes(answer[:4], "little")
        return fastapi.Response(answer[4:], headers={"Inference-Header-Content-Length": str(size)})

    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        port = listener.getsockname()[1]
        temporary = Path(asked["ready_file"] + ".tmp")
        temporary.write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "name": "plain"}))
        temporary.rename(asked["ready_file"])
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
