"""Files for many machines: a Dockerfile and Kubernetes or KServe manifests. No torch here."""

import dataclasses
import json
import math
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from conveyor.errors import UserError, did_you_mean
from conveyor.infer.target import check_target, replacing_folder
from conveyor.serve.settings import ServeSettings
from conveyor.version import __version__

KINDS = ("docker", "k8s", "kserve")
PORT, GRPC_PORT = 8080, 8081
MODEL_MOUNT = "/models"
USER = 10001
PASSED_ON = (
    "infer_precision", "max_drop", "max_body", "max_pixels", "max_inflight", "timeout", "poll", "drain", "checkpoint", "name",
    "batch_sizes", "host_name", "workers", "threads",
)  # fmt: skip
"""Settings that the server in the container has too where they are not the default."""
TEMPLATES = Path(__file__).parent / "templates"
HEAD = """\
# The exported model lies on the volume claim of the name below, as numbered folders (1, 2, ...) or one export.
# A secret of the name below with the key 'token' switches the bearer token on.
"""


def emit(
    kind: str, settings: ServeSettings, out: str | None, *, image: str | None = None, replicas: int = 2
) -> list[Path]:
    """Write the files of `kind` for this server into a new folder; returns what was written."""
    if kind not in KINDS:
        raise UserError(f"--emit cannot be {kind!r}{did_you_mean(kind, KINDS)}")
    if settings.tls_cert:
        raise UserError(
            "--emit writes servers without TLS, which the balancer in front of them ends: leave out --tls-cert"
        )
    if replicas < 1:
        raise UserError(f"--replicas {replicas}: give at least 1")
    target = check_target(out)
    name = resource_name(settings.name or Path(settings.path).resolve().name)
    image = image or f"conveyor:{__version__}"
    if not re.fullmatch(r"[\w.:/@-]+", image, re.ASCII):
        raise UserError(f"--image {image!r} is no name of an image, such as registry.example.org/team/conveyor:1.0")
    values = {
        "name": name, "image": image, "quoted_image": json.dumps(image), "user": USER, "port": PORT, "grpc_port": GRPC_PORT,
        "models": MODEL_MOUNT, "replicas": replicas, "most_replicas": max(10, 2 * replicas),
        "timeout": int(settings.timeout) + 5, "grace_seconds": _grace_seconds(settings),
    }  # fmt: skip
    files = {"Dockerfile": _filled("Dockerfile", values, settings)}
    inside = dataclasses.replace(settings, host_name=_names(name, settings))
    if kind == "k8s":
        files["kubernetes.yaml"] = _yaml(_documents("kubernetes.yaml", values, inside))
    if kind == "kserve":
        files["kserve.yaml"] = _yaml([kserve(values, inside)])
    with replacing_folder(target) as folder:
        for file, content in files.items():
            (folder / file).write_text(content, encoding="utf-8")
    return [target / file for file in files]


def resource_name(text: str) -> str:
    """A name that Kubernetes accepts: lower-case letters, digits and dashes, at most 50 of them."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-")
    return cleaned if cleaned and cleaned[0].isalpha() else f"model-{cleaned}".strip("-")


def arguments(settings: ServeSettings) -> list[str]:
    """The command line inside the container; the token comes from the environment, never from here."""
    words = [MODEL_MOUNT, "--host", "0.0.0.0", "--port", str(PORT), "--grpc-port", str(GRPC_PORT)]
    words += ["--engine", settings.engine, "--max-batch", str(settings.max_batch), "--delay-us", str(settings.delay_us)]
    words += ["--queue", str(settings.queue), "--drain-delay", f"{_drain_delay(settings):g}"]
    for option in PASSED_ON:
        value = getattr(settings, option)
        if value != getattr(ServeSettings(path=""), option):
            parts = value if isinstance(value, tuple) else (value,)
            written = (f"{part:g}" if isinstance(part, float) else str(part) for part in parts)
            words += [f"--{option.replace('_', '-')}", *written]
    return words


def _drain_delay(settings: ServeSettings) -> float:
    """Longer than the readiness probe's period: a load balancer must notice before the server stops listening."""
    return max(5.0, settings.drain_delay)


def _grace_seconds(settings: ServeSettings) -> int:
    """Longer than the server takes to stop."""
    return math.ceil(_drain_delay(settings) + settings.drain) + 10


def _filled(file: str, values: Mapping[str, Any], settings: ServeSettings) -> str:
    """The text of a template; the command line is a list in JSON, which is YAML too but for pairs of surrogates."""
    template = string.Template((TEMPLATES / file).read_text(encoding="utf-8"))
    return template.substitute(values, arguments=json.dumps(arguments(settings), ensure_ascii=False))


def _documents(file: str, values: Mapping[str, Any], settings: ServeSettings) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(_filled(file, values, settings)))


def kserve(values: Mapping[str, Any], settings: ServeSettings) -> dict[str, Any]:
    """The InferenceService with the pod of the Deployment."""
    service, deployment = (_documents(file, values, settings)[0] for file in ("kserve.yaml", "kubernetes.yaml"))
    pod = deployment["spec"]["template"]["spec"]
    # KServe routes to one port of the container; gRPC clients use a second InferenceService or the plain manifests.
    pod["containers"][0] |= {
        "name": "kserve-container",
        "ports": [{"name": "http1", "containerPort": PORT, "protocol": "TCP"}],
    }
    service["spec"]["predictor"] |= pod
    return service


def _names(name: str, settings: ServeSettings) -> tuple[str, ...]:
    """Names by which other pods reach the service; not NAME.NAMESPACE, which may be a real host outside the cluster."""
    called = (name, f"{name}-predictor")
    inside = (f"{each}.*.svc{domain}" for each in called for domain in ("", ".cluster.local"))
    return (*settings.host_name, *called, *inside)


def _yaml(documents: list[dict[str, Any]]) -> str:
    return HEAD + yaml.safe_dump_all(documents, sort_keys=False, width=1000)
