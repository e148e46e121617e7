"""Files for many machines: a Dockerfile and Kubernetes or KServe manifests. No torch here."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import yaml

from conveyor.errors import UserError, did_you_mean
from conveyor.infer.target import check_target, folder_at_once
from conveyor.serve.settings import ServeSettings
from conveyor.version import __version__

KINDS = ("docker", "k8s", "kserve")
PORT, GRPC_PORT = 8080, 8081
MODEL_MOUNT = "/models"
USER = 10001
_DOCKERFILE = """\
# Build beside a wheel of conveyor:  docker build -t {image} .
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 CONVEYOR_CACHE=/tmp/conveyor OMP_WAIT_POLICY=PASSIVE
COPY conveyor-*.whl /tmp/
RUN pip install "$(ls /tmp/conveyor-*.whl)[export,serve]" && rm /tmp/conveyor-*.whl \\
 && useradd --uid {user} --no-create-home conveyor
USER {user}
EXPOSE {port} {grpc_port}
HEALTHCHECK CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/v2/health/ready', timeout=3)"
STOPSIGNAL SIGTERM
ENTRYPOINT ["conveyor", "serve"]
CMD {command}
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
    files = {"Dockerfile": dockerfile(settings, image)}
    if kind == "k8s":
        files["kubernetes.yaml"] = _yaml(kubernetes(name, settings, image, replicas))
    if kind == "kserve":
        files["kserve.yaml"] = _yaml(kserve(name, settings, image, replicas))
    with folder_at_once(target) as folder:
        for file, content in files.items():
            (folder / file).write_text(content)
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
    if settings.infer_precision:
        words += ["--infer-precision", settings.infer_precision]
    for option in ("max_drop", "max_body", "max_pixels", "max_inflight", "timeout", "poll", "drain"):
        value = getattr(settings, option)
        if value != getattr(ServeSettings(path=""), option):
            words += [f"--{option.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    if settings.checkpoint:
        words += ["--checkpoint", settings.checkpoint]
    if settings.name:
        words += ["--name", settings.name]
    if settings.batch_sizes:
        words += ["--batch-sizes", *(str(size) for size in settings.batch_sizes)]
    if settings.host_names:
        words += ["--host-name", *settings.host_names]
    if settings.workers:
        words += ["--workers", str(settings.workers)]
    if settings.threads:
        words += ["--threads", str(settings.threads)]
    return words


def _drain_delay(settings: ServeSettings) -> float:
    """Longer than the readiness probe's period: a load balancer must notice before the server stops listening."""
    return max(5.0, settings.drain_delay)


def _grace_seconds(settings: ServeSettings) -> int:
    """Longer than the server takes to stop."""
    return math.ceil(_drain_delay(settings) + settings.drain) + 10


def dockerfile(settings: ServeSettings, image: str) -> str:
    command = json.dumps(arguments(settings))
    return _DOCKERFILE.format(image=image, user=USER, port=PORT, grpc_port=GRPC_PORT, command=command)


def _container(name: str, settings: ServeSettings, image: str) -> dict[str, Any]:
    def probe(path: str, **more: int) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": PORT}, "timeoutSeconds": 3, **more}

    token = {
        "name": "CONVEYOR_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": f"{name}-token", "key": "token", "optional": True}},
    }
    return {
        "name": "conveyor",
        "image": image,
        "args": arguments(dataclasses.replace(settings, host_names=_names(name, settings))),
        "env": [token],
        "ports": [{"name": "http", "containerPort": PORT}, {"name": "grpc", "containerPort": GRPC_PORT}],
        "resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
        "startupProbe": probe("/v2/health/ready", periodSeconds=5, failureThreshold=60),
        "readinessProbe": probe("/v2/health/ready", periodSeconds=2, failureThreshold=1),
        "livenessProbe": probe("/v2/health/live", periodSeconds=10, failureThreshold=3),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "models", "mountPath": MODEL_MOUNT, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _names(name: str, settings: ServeSettings) -> tuple[str, ...]:
    """Names by which other pods reach the service; not NAME.NAMESPACE, which may be a real host outside the cluster."""
    called = (name, f"{name}-predictor")
    inside = (f"{each}.*.svc{domain}" for each in called for domain in ("", ".cluster.local"))
    return (*settings.host_names, *called, *inside)


def _volumes(name: str) -> list[dict[str, Any]]:
    return [
        {"name": "models", "persistentVolumeClaim": {"claimName": f"{name}-models", "readOnly": True}},
        {"name": "tmp", "emptyDir": {}},
    ]


def kubernetes(name: str, settings: ServeSettings, image: str, replicas: int) -> list[dict[str, Any]]:
    """Deployment, Service, autoscaler and disruption budget: ordinary HTTP behind an ordinary load balancer."""
    labels = {"app.kubernetes.io/name": "conveyor", "app.kubernetes.io/instance": name}
    pod = {
        "terminationGracePeriodSeconds": _grace_seconds(settings),
        "containers": [_container(name, settings, image)],
        "volumes": _volumes(name),
    }
    annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT), "prometheus.io/path": "/metrics"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "selector": labels,
            "ports": [
                {"name": "http", "port": 80, "targetPort": "http"},
                {"name": "grpc", "port": 8500, "targetPort": "grpc", "appProtocol": "kubernetes.io/h2c"},
            ],
        },
    }
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": replicas,
            "maxReplicas": max(10, 2 * replicas),
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
                }
            ],
        },
    }
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "labels": labels},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    }
    return [deployment, service, scaler, budget]


def kserve(name: str, settings: ServeSettings, image: str, replicas: int) -> list[dict[str, Any]]:
    """A KServe InferenceService with our container: it speaks the Open Inference Protocol itself."""
    container = _container(name, settings, image)
    container["name"] = "kserve-container"
    # KServe routes to one port of the container; gRPC clients use a second InferenceService or the plain manifests.
    container["ports"] = [{"name": "http1", "containerPort": PORT, "protocol": "TCP"}]
    predictor = {
        "minReplicas": replicas,
        "maxReplicas": max(10, 2 * replicas),
        "timeout": int(settings.timeout) + 5,
        "terminationGracePeriodSeconds": _grace_seconds(settings),
        "containers": [container],
        "volumes": _volumes(name),
    }
    return [
        {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": {"name": name, "annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"}},
            "spec": {"predictor": predictor},
        }
    ]


def _yaml(documents: list[dict[str, Any]]) -> str:
    head = (
        "# The exported model lies on the volume claim of the name below, as numbered folders (1, 2, ...) or one export.\n"
        "# A secret of the name below with the key 'token' switches the bearer token on.\n"
    )
    return head + yaml.safe_dump_all(documents, sort_keys=False, width=1000)
