"""`conveyor request`: send photographs to a server, or load it and measure its speed."""

import argparse
import json
import os
import re
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from conveyor.errors import UserError, needed, nothing_at
from conveyor.infer import ENGINES
from conveyor.infer.asked_precision import add_infer_precision
from conveyor.monitor.progress import say, say_aside
from conveyor.options.coerce import checked
from conveyor.options.parser import add, add_checkpoint, add_settings, settings_from
from conveyor.serve.log import escaped

LONGEST_SIDE = 1 << 13
"""Pixels of the images that are made up for a server; another one may say anything."""
DATA = ("random", "real")
HELP = "Ask a running server, or serve a model and load it with many clients."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from conveyor.request.client import LoadSettings

    parser.add_argument(
        "target",
        metavar="URL|RUN|EXPORT",
        help="http://HOST:PORT of a server, or a model to be served for the occasion.",
    )
    parser.add_argument(
        "images", nargs="*", metavar="PHOTOGRAPH", help="Classify these files; without any, load the server."
    )
    add_checkpoint(parser)
    parser.add_argument("--name", help="Name of the model at URL; default: asked of the server (Conveyor's tell it).")
    add_settings(parser, LoadSettings, "protocol")
    add(parser, "--grpc-port", int, "N", "gRPC port of the server at URL; default: the one after its HTTP port.")
    add_settings(parser, LoadSettings, "tls_ca", "batch_size", "clients", "num_images", "seconds", "rate", "use_async")
    parser.add_argument(
        "--data", choices=DATA, default=DATA[0], help="Random images, or those of the model's data set. [random]"
    )
    add_settings(parser, LoadSettings, "timeout", "verbose")
    parser.add_argument("--json", action="store_true", help="One JSON object instead of text.")
    add(parser, "--engine", "auto", "NAME", f"When a model is served for the occasion: {', '.join(ENGINES)}.")
    add_infer_precision(parser)
    add(parser, "--max-batch", 16, "N", "Largest batch then.")
    add(parser, "--delay-us", 2000, "N", "Batching delay then.")


def run(arguments: argparse.Namespace) -> int:
    from conveyor.request.client import LoadSettings, engine_processes
    from conveyor.serve import versions
    from conveyor.serve.launcher import running_server
    from conveyor.serve.settings import ServeSettings

    checked(settings_from(LoadSettings, arguments, port=0, name=""))  # before a server is started
    trusted = _trusted(arguments)
    if _is_address(arguments.target):
        if arguments.infer_precision is not None:
            raise UserError(
                f"--infer-precision is for a model served here; the server at {arguments.target} has its own"
            )
        if arguments.checkpoint is not None:
            raise UserError(f"--checkpoint chooses one of a run; the server at {arguments.target} has its own")
        parts = urlsplit(arguments.target)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise UserError(f"{arguments.target} is no address: give http://HOST:PORT, a run or an export") from None
        host, grpc_port = parts.hostname or "127.0.0.1", arguments.grpc_port or port + 1
        return _ask(arguments, arguments.target.rstrip("/"), trusted, host, port, grpc_port)
    settings = ServeSettings(
        path=arguments.target, checkpoint=arguments.checkpoint, port=0, grpc_port=0, engine=arguments.engine, max_batch=arguments.max_batch,
        delay_us=arguments.delay_us, poll=0, drain_delay=0.0,
        infer_precision=arguments.infer_precision, max_drop=arguments.max_drop,
        workers=engine_processes(arguments.clients, use_async=arguments.use_async),
    )  # fmt: skip
    if not Path(arguments.target).exists():
        raise nothing_at(arguments.target, "http://HOST:PORT, a run or an export")
    needed("uvicorn", "conveyor request", "serve")  # before a server is said to start
    chosen = versions.newest(Path(arguments.target), arguments.checkpoint).text()
    if not arguments.json:
        say_aside(f"starting a server for {arguments.target}{chosen and f': {chosen}'}")
    with running_server(settings) as server:
        return _ask(arguments, server.url, trusted, "127.0.0.1", server.port, server.grpc_port or 0)


def _trusted(arguments: argparse.Namespace) -> ssl.SSLContext | bool:
    """What the server's certificate is compared with: the file of --tls-ca, or (true) what the system trusts."""
    if arguments.tls_ca is None:
        return True
    if not arguments.target.startswith("https://"):
        raise UserError(f"--tls-ca is for a server at https://HOST:PORT, not for {arguments.target}")
    try:
        return ssl.create_default_context(cafile=arguments.tls_ca)
    except ssl.SSLError:
        raise UserError(f"--tls-ca {arguments.tls_ca} holds no certificate in PEM form") from None
    except OSError as error:
        raise UserError(f"--tls-ca {arguments.tls_ca} cannot be read: {error.strerror}") from None


def _is_address(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def _ask(
    arguments: argparse.Namespace, url: str, trusted: ssl.SSLContext | bool, host: str, port: int, grpc_port: int
) -> int:
    import httpx

    from conveyor.serve.settings import check_token

    token = os.environ.get("CONVEYOR_TOKEN", "").strip() or None
    if token:
        check_token(token)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(
            base_url=url, headers=headers, timeout=arguments.timeout, trust_env=False, verify=trusted
        ) as client:
            if arguments.images:
                return _classify(client, arguments.images, arguments.json)
            described = _described(client, arguments.name)
    except httpx.HTTPStatusError as error:
        said = escaped(str(_document(error.response).get("error", error.response.reason_phrase)))
        hint = "; put it into the variable CONVEYOR_TOKEN" if error.response.status_code == 401 else ""
        raise UserError(f"the server at {url} refuses ({error.response.status_code}): {said}{hint}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        hint = "; give the certificate it comes from with --tls-ca" if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""
        raise UserError(f"the server at {url} does not answer: {error}{hint}") from None
    from conveyor.request.client import LoadSettings, random_images, run_load

    shape = tuple(described["inputs"][0]["shape"][1:])
    images = _real_images(arguments) if arguments.data == "real" else random_images(shape)
    settings = settings_from(
        LoadSettings,
        arguments,
        host=host,
        port=port if arguments.protocol.startswith("http") else grpc_port,
        name=described["name"],
        token=token,
        tls=url.startswith("https"),
    )
    report = run_load(settings, images)
    print(json.dumps(report.to_json(), indent=1) if arguments.json else "\n".join(report.lines()))
    return 0 if report.ok else 1


def _described(client: Any, wanted: str | None) -> dict[str, Any]:
    """The metadata of the server's model; without a name it is learned from the list of metrics."""
    if wanted:
        return _model_document(client, wanted)
    for line in client.get("/metrics").raise_for_status().text.splitlines():
        if line.startswith("conveyor_model{") and (found := re.search(r'[{,]name="((?:[^"\\]|\\.)*)"', line)):
            return _model_document(client, re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], found[1]))
    raise UserError("the server has no model in service")


def _model_document(client: Any, name: str) -> dict[str, Any]:
    found = _document(client.get(f"/v2/models/{quote(name, safe='')}").raise_for_status())
    inputs = found.get("inputs")
    first = inputs[0] if isinstance(inputs, list) and inputs else None
    if not isinstance(first, dict):
        raise UserError("the server does not describe its model: it does not speak the Open Inference Protocol")
    shape = first.get("shape")
    sizes = shape[1:] if isinstance(shape, list) else []
    if len(sizes) != 3 or not all(type(size) is int and 0 < size <= LONGEST_SIDE for size in sizes):
        raise UserError(
            f"the server's model does not take images of one size: the shape of its input is {escaped(str(shape))[:60]}, and "
            "[-1, height, width, channels] is needed"
        )
    return found | {"name": name}


def _document(response: Any) -> dict[str, Any]:
    """The JSON object of an answer; an empty one when it is something else, as of another kind of server."""
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _real_images(arguments: argparse.Namespace) -> Any:
    from conveyor.infer import accuracy
    from conveyor.infer.load import load
    from conveyor.request.client import SAMPLE

    if _is_address(arguments.target):
        raise UserError(
            "--data real needs the model's folder, which says what data it was trained on: give it instead of a URL"
        )
    loaded = load(arguments.target, arguments.checkpoint)
    return accuracy.sample(accuracy.data_options(loaded), "validation", loaded.preprocessing, SAMPLE).images


def _best(answer: dict[str, Any]) -> str | None:
    """The classes of an answer; None when it is not one of this program. Another server may send any text."""
    try:
        return ", ".join(f"{escaped(one['label'])} {100 * one['probability']:.1f} %" for one in answer["best"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _classify(client: Any, files: list[str], as_json: bool) -> int:
    failed, answers = 0, []
    for file in files:
        try:
            content = Path(file).read_bytes()
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}") from None
        response = client.post("/classify", content=content)
        answer = _document(response)
        answers.append({"file": file, **answer})
        best = _best(answer) if response.status_code == 200 else None
        if best is None:
            failed += 1
            if not as_json:
                said = answer.get("error", f"the answer {response.status_code} is not of this program")
                print(f"{file}: FAILED: {escaped(str(said))}")
        elif not as_json:
            say(f"{file}: {best}")
    if as_json:
        print(json.dumps(answers, indent=1))
    return 1 if failed else 0
