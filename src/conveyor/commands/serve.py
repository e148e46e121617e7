"""`conveyor serve`: answer requests over HTTP and gRPC."""

import argparse
import os
from pathlib import Path

from conveyor.errors import UserError, nothing_at
from conveyor.infer.asked_precision import add_infer_precision, asked_precision
from conveyor.monitor.progress import say
from conveyor.options.parser import add, add_checkpoint, add_settings, settings_from
from conveyor.options.units import size_in_bytes
from conveyor.serve.settings import NO_GRPC, ServeSettings

HELP = "Serve a model over HTTP and gRPC, with a page to drop photographs on."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="RUN|EXPORT",
        help="A run, a checkpoint, an export, or a folder of numbered exports; a newer version that appears there is taken over.",
    )
    add_checkpoint(parser)
    add_settings(parser, ServeSettings, "name")
    where = parser.add_argument_group("Where")
    add_settings(where, ServeSettings, "host", "host_name", "port", "grpc_port")
    where.add_argument("--no-grpc", action="store_true", help="HTTP only.")
    add(
        where,
        "--token-file",
        str,
        "FILE",
        "File with a bearer token that requests must carry; or the variable CONVEYOR_TOKEN.",
    )
    add_settings(where, ServeSettings, "tls_cert", "tls_key", "ready_file")
    speed = parser.add_argument_group("Engines and batches")
    add_settings(speed, ServeSettings, "engine")
    add_infer_precision(speed)
    add_settings(
        speed, ServeSettings, "data_dir", "workers", "threads", "max_batch", "batch_sizes", "delay_us", "queue"
    )
    limits = parser.add_argument_group("Limits")
    add(limits, "--max-body", "32MiB", "SIZE", "Largest request.")
    add_settings(limits, ServeSettings, "max_pixels")
    add(limits, "--max-inflight", "256MiB", "SIZE", "All request bodies in memory together.")
    add_settings(limits, ServeSettings, "timeout", "poll", "swap_agreement", "swap_requests", "drain", "drain_delay")
    emit = parser.add_argument_group("Many machines")
    add(emit, "--emit", str, "{docker,k8s,kserve}", "Write a Dockerfile and manifests instead of serving.")
    add(emit, "--out", str, "DIR", "New folder for the files of --emit.")
    emit.add_argument("--image", help="Name of the container image in the manifests.")
    add(emit, "--replicas", 2, "N", "Copies of the server in the manifests.")


def run(arguments: argparse.Namespace) -> int:
    asked_precision(arguments)  # notes what has no effect
    settings = settings_from(
        ServeSettings,
        arguments,
        path=arguments.model,
        grpc_port=NO_GRPC if arguments.no_grpc else arguments.grpc_port,
        max_body=size_in_bytes(arguments.max_body),
        max_inflight=size_in_bytes(arguments.max_inflight),
        token=None if arguments.emit else read_token(arguments.token_file),
    ).check()
    if arguments.emit:
        from conveyor.serve.manifests import emit

        for file in emit(arguments.emit, settings, arguments.out, image=arguments.image, replicas=arguments.replicas):
            print(f"written to {file}")
        return 0
    from conveyor.serve.server import serve

    if not Path(settings.path).exists():
        raise nothing_at(settings.path, "a run or an export")
    say(f"loading {settings.path}; the first time this takes a while, since engines are tried out")
    return serve(settings, say=say)


def read_token(file: str | None) -> str | None:
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
