"""Load a server with requests and report how it did; also export, serve and request in one call. No torch at import."""

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor import scratch
from conveyor.errors import UserError
from conveyor.infer.preprocessing import Preprocessing
from conveyor.measure.latency import Latency
from conveyor.options import Options
from conveyor.options.coerce import checked
from conveyor.options.field import option
from conveyor.options.units import many
from conveyor.processes import of_module
from conveyor.request.callers import PROTOCOLS
from conveyor.request.clients import IN_FLIGHT
from conveyor.serve.launcher import running_server
from conveyor.serve.settings import MAX_INFLIGHT, ServeSettings

PATIENCE, PATIENCE_PER_IMAGE = 60.0, 1.0
"""Seconds for a request of `export_and_request`, at least, and for each image that may wait before it."""
MODEL_BATCH_DELAY_US = 500
QUEUED_BATCHES = 1000
KEEPING_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}
"""The C library keeps what a request took for the next one; else the system clears its pages anew, half of a client's time."""
SAMPLE = 64
"""Different images that the clients draw from."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Which server is loaded, by how many clients, with which requests."""

    port: int
    name: str
    host: str = "127.0.0.1"
    protocol: str = option("grpc", "How the clients speak.", choices=PROTOCOLS)
    input_name: str = "images"
    batch_size: int = option(1, "Images of each request.", metavar="N", minimum=1)
    clients: int = option(2, "Client processes.", metavar="N", minimum=1)
    num_images: int = option(1000, "Images of each client.", metavar="N", minimum=1)
    seconds: float | None = option(None, "Send for this long instead of --num-images.", metavar="S", above=0)
    rate: float | None = option(
        None,
        "Requests per second of all clients together; latencies count from the moment a request is due. Default: as many as are answered.",
        metavar="N",
        above=0,
    )
    use_async: bool = option(False, "Do not wait for an answer before the next request.")
    timeout: float = option(10.0, "Seconds for each request.", metavar="S", above=0)
    verbose: bool = option(False, "The first client prints each latency, their average, min and max.")
    token: str | None = None
    tls: bool = False
    tls_ca: str | None = option(
        None, "Certificates in PEM form to trust at an https URL; default: those of the system.", metavar="FILE"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LoadReport:
    """What all clients together saw."""

    seconds: float
    images: int
    requests: int
    retries: int
    failures: tuple[str, ...]
    latency: Latency | None
    cpu_seconds: float = 0.0
    """Processor time of the clients themselves, warm-up included: on the server's machine it is not the server's."""

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds if self.seconds else 0.0

    @property
    def ok(self) -> bool:
        return not self.failures and self.images > 0

    def lines(self) -> list[str]:
        found = [
            f"total time: {self.seconds * 1000:.1f} ms, {many(self.images, 'image')} in {many(self.requests, 'request')}",
            f"average throughput: {self.images_per_second:.2f} samples/sec",
        ]
        if self.latency is not None:
            found.append(self.latency.text())
        if self.cpu_seconds:
            found.append(f"the clients themselves used {self.cpu_seconds:.1f} s of processor time")
        if self.retries:
            found.append(f"{many(self.retries, 'request')} sent again, as the server was busy")
        if self.failures:
            found.append(f"{many(len(self.failures), 'request')} FAILED, the first: {self.failures[0]}")
        return found

    def to_json(self) -> dict[str, Any]:
        told = dataclasses.asdict(self)
        told["client_cpu_seconds"], told["latency_ms"] = told.pop("cpu_seconds"), told.pop("latency")
        return {**told, "images_per_second": self.images_per_second}


def run_load(settings: LoadSettings, images: NDArray[np.uint8]) -> LoadReport:
    """Send `images` (uint8 [N, H, W, C], used in turn) with many client processes after a warm-up and a barrier."""
    settings = checked(settings)
    with scratch.folder("request") as folder:
        file = folder / "images.npy"
        np.save(file, images)
        order = json.dumps({**dataclasses.asdict(settings), "images": str(file)})
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"}
        environment |= KEEPING_MEMORY
        done = subprocess.run(
            of_module("conveyor.request.clients"),
            input=order,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
    if done.returncode != 0:
        raise UserError("the client processes failed; their own words are above")
    return _report(json.loads(done.stdout))


def _report(document: dict[str, Any]) -> LoadReport:
    clients = document["clients"]
    latencies = [value for client in clients for value in client["latencies"]]
    return LoadReport(
        seconds=document["seconds"],
        images=sum(client["images"] for client in clients),
        requests=len(latencies),
        retries=sum(client["retries"] for client in clients),
        failures=tuple(text for client in clients for text in client["failures"]),
        latency=Latency.of(latencies) if latencies else None,
        cpu_seconds=sum(client["cpu_seconds"] for client in clients),
    )


def engine_processes(clients: int, *, use_async: bool) -> int | None:
    """For a server of these clients alone: one engine with all cores if only one request is ever under way.

    None: as many as the server finds best for throughput.
    """
    return 1 if clients == 1 and not use_async else None


def patience(clients: int, batch_size: int, *, use_async: bool) -> float:
    """The time limit of a request in seconds, long enough for all that these clients may have sent before it.

    max(PATIENCE, PATIENCE_PER_IMAGE * images under way): two cores are slow with dozens of requests.

    >>> patience(1, 1, use_async=False), patience(16, 32, use_async=True)
    (60.0, 4096.0)
    """
    return max(PATIENCE, PATIENCE_PER_IMAGE * _under_way(clients, batch_size, use_async=use_async))


def _under_way(clients: int, batch_size: int, *, use_async: bool) -> int:
    """Images that these clients have sent at most before they get an answer."""
    return clients * (IN_FLIGHT if use_async else 1) * batch_size


def random_images(shape: tuple[int, int, int], count: int = SAMPLE) -> NDArray[np.uint8]:
    """Random bytes in the shape of images, the same each time."""
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def export_and_request(
    options: Options,
    folder: str | Path,
    load: LoadSettings,
    *,
    checkpoint: str | None = None,
    form: str = "onnx",
    say: Callable[[str], None] = lambda text: None,
) -> LoadReport:
    """Export the model of `options` as `folder/001` in `form` (an old one is removed), serve it, send requests, report.

    The model's batch is the micro-batch of the options. When requests have another size, the server joins and pads
    them to exactly that batch (500 microseconds, 1000 waiting batches); otherwise each request is one batch.
    The port of `load` is the gRPC port, 0 a free one; an address of all interfaces is served on the loopback one.
    """
    from conveyor.infer.export import export
    from conveyor.infer.load import from_options
    from conveyor.infer.load import load as load_model

    model_batch = options.batch.micro_batch_size
    loaded = load_model(checkpoint) if checkpoint else from_options(options, load.name)
    if not checkpoint and options.model.weights is None:
        say("note: no checkpoint was given, so the weights are random")
    target = Path(folder) / "001"
    shutil.rmtree(target, ignore_errors=True)
    say(export(loaded, target, form, batch=model_batch).text())
    images = _images(options, loaded.preprocessing)
    # Clients that are refused because the queue is full send their images again, which takes CPU time from the engines.
    held = _under_way(load.clients, load.batch_size, use_async=load.use_async) * images[0].nbytes
    local = "127.0.0.1" if load.host in ("0.0.0.0", "localhost", "") else load.host
    settings = ServeSettings(
        path=str(target),  # not the folder: it may hold a version with a higher number
        name=load.name,
        host=local,
        port=0,
        grpc_port=load.port,
        batch_sizes=(model_batch,),
        delay_us=0 if load.batch_size == model_batch else MODEL_BATCH_DELAY_US,
        queue=QUEUED_BATCHES * model_batch,
        max_inflight=max(MAX_INFLIGHT, 2 * held),
        poll=0,
        drain_delay=0.0,
        timeout=patience(load.clients, load.batch_size, use_async=load.use_async),
        engine="onnxruntime",
        workers=engine_processes(load.clients, use_async=load.use_async),
    )
    with running_server(settings) as server:
        say(f"serving {load.name} version {server.version} at {local} port {server.grpc_port}")
        load = dataclasses.replace(load, host=local, port=server.grpc_port or 0, timeout=settings.timeout)
        return run_load(dataclasses.replace(load, protocol="grpc-tensorflow", input_name="input"), images)


def _images(options: Options, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """What the clients send: images of the options' data set, or a random one where they ask for generated data."""
    from conveyor.infer import accuracy

    if options.data.generated_data or options.data.synthetic_data:
        return random_images(preprocessing.image_shape, 1)
    return accuracy.sample(options, "validation", preprocessing, SAMPLE).images
