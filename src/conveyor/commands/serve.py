"""`conveyor serve`: answer requests over HTTP and gRPC."""

import argparse
import os
from pathlib import Path

from conveyor.errors import UserError
from conveyor.infer import ENGINES
from conveyor.infer.asked_precision import add_infer_precision
from conveyor.options.parser import add_checkpoint
from conveyor.options.units import size_in_bytes

HELP = "Serve a model over HTTP and gRPC, with a page to drop photographs on."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="RUN|EXPORT",
        help="A run, a checkpoint, an export, or a folder of numbered exports; a newer version that appears there is taken over.",
    )
    add_checkpoint(parser)
    parser.add_argument("--name", help="Name of the model in addresses; default: that of the run or export.")
    where = parser.add_argument_group("Where")
    where.add_argument("--host", default="127.0.0.1", help="Address to listen on. [127.0.0.1: this machine only]")
    where.add_argument(
        "--host-name",
        nargs="+",
        default=[],
        metavar="NAME",
        help="Further names by which callers reach this server, such as *.example.org: without a token, requests to other "
        "names than those, localhost and this machine's are refused. [none]",
    )
    where.add_argument("--port", type=int, default=8502, metavar="N", help="HTTP port, 0 for a free one. [8502]")
    where.add_argument(
        "--grpc-port", type=int, metavar="N", help="gRPC port, 0 for a free one; default: the one after --port."
    )
    where.add_argument("--no-grpc", action="store_true", help="HTTP only.")
    where.add_argument(
        "--token-file",
        metavar="FILE",
        help="File with a bearer token that requests must carry; or the variable CONVEYOR_TOKEN.",
    )
    where.add_argument("--tls-cert", metavar="FILE", help="Certificate chain in PEM form.")
    where.add_argument("--tls-key", metavar="FILE", help="Its private key in PEM form.")
    where.add_argument(
        "--ready-file", metavar="FILE", help="Written with the addresses as JSON once the server answers."
    )
    speed = parser.add_argument_group("Engines and batches")
    speed.add_argument(
        "--engine",
        default="auto",
        metavar=f"{{{','.join(ENGINES)}}}",
        help="auto measures and takes the fastest. [auto]",
    )
    add_infer_precision(speed)
    speed.add_argument(
        "--data-dir", metavar="DIR", help="Images for --infer-precision, when not where the run had them."
    )
    speed.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="Engine processes; default: one per core, at most 8. 1 gives the lowest latency.",
    )
    speed.add_argument(
        "--threads", type=int, metavar="N", help="Threads of each; default: the cores divided among the workers."
    )
    speed.add_argument(
        "--max-batch", type=int, default=16, metavar="N", help="Images that are answered together at most. [16]"
    )
    speed.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="Allowed batches, short ones are padded; default: powers of two.",
    )
    speed.add_argument(
        "--delay-us",
        type=int,
        default=2000,
        metavar="N",
        help="Microseconds that the first request of a batch waits for company. [2000]",
    )
    speed.add_argument(
        "--queue",
        type=int,
        default=512,
        metavar="N",
        help="Images that may wait; more are refused (429, RESOURCE_EXHAUSTED). [512]",
    )
    limits = parser.add_argument_group("Limits")
    limits.add_argument("--max-body", default="32MiB", metavar="SIZE", help="Largest request. [32MiB]")
    limits.add_argument(
        "--max-pixels", type=int, default=50_000_000, metavar="N", help="Largest photograph. [50000000]"
    )
    limits.add_argument(
        "--max-inflight", default="256MiB", metavar="SIZE", help="All request bodies in memory together. [256MiB]"
    )
    limits.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="Seconds for a request, from arrival to answer. [30]"
    )
    limits.add_argument(
        "--poll", type=float, default=2.0, metavar="S", help="Seconds between looks for a new version, 0 never. [2]"
    )
    limits.add_argument(
        "--swap-agreement",
        type=float,
        metavar="X",
        help="A new version is taken only if it answers this share of the last requests as they were answered, "
        "such as 0.98; default: it is not compared.",
    )
    limits.add_argument(
        "--swap-requests", type=int, default=200, metavar="N", help="Images kept for that comparison. [200]"
    )
    limits.add_argument(
        "--drain", type=float, default=30.0, metavar="S", help="Most seconds for requests under way when stopping. [30]"
    )
    limits.add_argument(
        "--drain-delay",
        type=float,
        default=0.5,
        metavar="S",
        help="Seconds in which a stopping server still takes connections. [0.5]",
    )
    emit = parser.add_argument_group("Many machines")
    emit.add_argument(
        "--emit", metavar="{docker,k8s,kserve}", help="Write a Dockerfile and manifests instead of serving."
    )
    emit.add_argument("--out", metavar="DIR", help="New folder for the files of --emit.")
    emit.add_argument("--image", help="Name of the container image in the manifests.")
    emit.add_argument("--replicas", type=int, default=2, metavar="N", help="Copies of the server in the manifests. [2]")


def run(arguments: argparse.Namespace) -> int:
    from conveyor.serve.settings import NO_GRPC, ServeSettings

    settings = ServeSettings(
        path=arguments.model, checkpoint=arguments.checkpoint, name=arguments.name, host=arguments.host,
        host_names=tuple(arguments.host_name), port=arguments.port,
        grpc_port=NO_GRPC if arguments.no_grpc else arguments.grpc_port, engine=arguments.engine, workers=arguments.workers,
        infer_precision=arguments.infer_precision, max_drop=arguments.max_drop, data_dir=arguments.data_dir,
        threads=arguments.threads, max_batch=arguments.max_batch, batch_sizes=tuple(arguments.batch_sizes),
        delay_us=arguments.delay_us, queue=arguments.queue, max_body=size_in_bytes(arguments.max_body),
        max_pixels=arguments.max_pixels, max_inflight=size_in_bytes(arguments.max_inflight), timeout=arguments.timeout,
        token=None if arguments.emit else _token(arguments.token_file), tls_cert=arguments.tls_cert, tls_key=arguments.tls_key,
        poll=arguments.poll,
        swap_agreement=arguments.swap_agreement, swap_requests=arguments.swap_requests, drain=arguments.drain, drain_delay=arguments.drain_delay, ready_file=arguments.ready_file,
    ).check()  # fmt: skip
    if arguments.emit:
        from conveyor.serve.manifests import emit

        for file in emit(arguments.emit, settings, arguments.out, image=arguments.image, replicas=arguments.replicas):
            print(f"written to {file}")
        return 0
    from conveyor.serve.server import serve

    if not Path(settings.path).exists():
        raise UserError(f"there is nothing at {settings.path}: give a run or an export")
    print(f"loading {settings.path}; the first time this takes a while, since engines are tried out", flush=True)
    return serve(settings, say=lambda line: print(line, flush=True))


def _token(file: str | None) -> str | None:
    """The token from a file or the environment: a command line can be read by every user of the machine."""
    if file is None:
        given = os.environ.get("CONVEYOR_TOKEN")
        return given.strip() if given else None  # files with secrets often end with a newline
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        raise UserError(f"the token file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"the token file {file} holds something else than text") from None
