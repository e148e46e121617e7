import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from conveyor.errors import UserError
from conveyor.options.parser import Parser
from conveyor.serve.manifests import arguments, emit, resource_name
from conveyor.serve.settings import ServeSettings

NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}
PROBE = {
    "type": "object", "additionalProperties": False, "required": ["httpGet"],
    "properties": {
        "httpGet": {"type": "object", "required": ["path", "port"], "additionalProperties": False,
                    "properties": {"path": {"type": "string", "pattern": "^/"}, "port": {"type": "integer"}}},
        "timeoutSeconds": {"type": "integer"}, "periodSeconds": {"type": "integer"}, "failureThreshold": {"type": "integer"},
    },
}  # fmt: skip
QUANTITY = {"type": "object", "additionalProperties": {"type": "string", "pattern": "^[0-9.]+(m|Ki|Mi|Gi)?$"}}
CONTAINER = {
    "type": "object", "additionalProperties": False, "required": ["name", "image"],
    "properties": {
        "name": NAME, "image": {"type": "string"}, "args": {"type": "array", "items": {"type": "string"}},
        "env": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "ports": {"type": "array", "items": {"type": "object", "required": ["containerPort"], "additionalProperties": False,
                  "properties": {"name": {"type": "string", "maxLength": 15}, "containerPort": {"type": "integer", "maximum": 65535},
                                 "protocol": {"enum": ["TCP"]}}}},
        "resources": {"type": "object", "additionalProperties": QUANTITY},
        "startupProbe": PROBE, "readinessProbe": PROBE, "livenessProbe": PROBE, "securityContext": {"type": "object"},
        "volumeMounts": {"type": "array", "items": {"type": "object", "required": ["name", "mountPath"]}},
    },
}  # fmt: skip
POD = {
    "type": "object", "required": ["containers"],
    "properties": {
        "containers": {"type": "array", "minItems": 1, "items": CONTAINER},
        "volumes": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "terminationGracePeriodSeconds": {"type": "integer", "minimum": 1},
    },
}  # fmt: skip
RESOURCE = {
    "type": "object", "additionalProperties": False, "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "spec": {"type": "object"},
        "metadata": {"type": "object", "required": ["name"], "additionalProperties": False,
                     "properties": {"name": NAME, "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}},
                                    "annotations": {"type": "object", "additionalProperties": {"type": "string"}}}},
    },
}  # fmt: skip
"""The parts of the public schemas that these manifests use, closed against misspelt keys."""


def documents(kind: str, folder: Path, **changes: Any) -> list[dict[str, Any]]:
    files = emit(
        kind,
        ServeSettings(path="runs/My Run.1", **changes),
        str(folder),
        image="registry.example/conveyor:1",
        replicas=3,
    )
    assert (folder / "Dockerfile").is_file()
    found = list(yaml.safe_load_all(files[-1].read_text()))
    for document in found:
        jsonschema.validate(document, RESOURCE)
    return found


def test_kubernetes(tmp_path: Path) -> None:
    found = {document["kind"]: document for document in documents("k8s", tmp_path / "out", drain=60.0)}
    assert set(found) == {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"}
    deployment = found["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    jsonschema.validate(pod, POD)
    assert deployment["replicas"] == 3
    assert deployment["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    assert found["Service"]["spec"]["selector"].items() <= deployment["template"]["metadata"]["labels"].items()
    assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} == {
        port["name"] for port in pod["containers"][0]["ports"]
    }
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    assert pod["terminationGracePeriodSeconds"] > 60 + 5, "longer than the server needs to drain"
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }


def test_kserve(tmp_path: Path) -> None:
    (document,) = documents("kserve", tmp_path / "out")
    assert document["apiVersion"] == "serving.kserve.io/v1beta1"
    predictor = document["spec"]["predictor"]
    jsonschema.validate(predictor, POD)
    assert predictor["containers"][0]["name"] == "kserve-container"
    assert predictor["minReplicas"] == 3 <= predictor["maxReplicas"]


def test_the_command_in_the_container_is_understood() -> None:
    from conveyor.commands import serve

    parser = Parser()
    serve.add_arguments(parser)
    settings = ServeSettings(path="x", name="m", batch_sizes=(4, 8), workers=2, threads=3, engine="openvino")
    parsed = parser.parse_args(arguments(settings))
    assert (parsed.name, parsed.batch_sizes, parsed.workers, parsed.threads, parsed.engine) == (
        "m",
        [4, 8],
        2,
        3,
        "openvino",
    )


def test_every_limit_reaches_the_container() -> None:
    from conveyor.commands import serve

    parser = Parser()
    serve.add_arguments(parser)
    settings = ServeSettings(
        path="x", max_body=8 << 20, max_pixels=1_000_000, max_inflight=64 << 20, timeout=5.5, poll=0.0, drain=120.0, drain_delay=8.0,
    )  # fmt: skip
    parsed = parser.parse_args(arguments(settings))
    assert (parsed.max_body, parsed.max_pixels, parsed.max_inflight) == (str(8 << 20), 1_000_000, str(64 << 20))
    assert (parsed.timeout, parsed.poll, parsed.drain, parsed.drain_delay) == (5.5, 0.0, 120.0, 8.0)


@pytest.mark.parametrize("kind", ["k8s", "kserve"])
def test_a_pod_is_not_killed_while_it_drains(tmp_path: Path, kind: str) -> None:
    changes = {"drain": 7.5, "drain_delay": 20.0}
    for document in documents(kind, tmp_path / "out", **changes):
        pod = document["spec"].get("predictor") or document["spec"].get("template", {}).get("spec")
        if pod is not None:
            words = pod["containers"][0]["args"]
            drain, delay = (float(words[words.index(option) + 1]) for option in ("--drain", "--drain-delay"))
            assert (drain, delay) == (7.5, 20.0)
            assert pod["terminationGracePeriodSeconds"] > drain + delay + 1


def test_names_with_quotes_stay_one_word(tmp_path: Path) -> None:
    emit("docker", ServeSettings(path="x", name='a "b" \\ c'), str(tmp_path / "out"))
    (command,) = [
        line for line in (tmp_path / "out" / "Dockerfile").read_text().splitlines() if line.startswith("CMD ")
    ]
    assert 'a "b" \\ c' in json.loads(command.removeprefix("CMD "))


@pytest.mark.parametrize("kind", ["k8s", "kserve"])
def test_names_in_any_script_are_what_they_were(tmp_path: Path, kind: str) -> None:
    """Halves of a letter (surrogates) are no YAML: Kubernetes refuses the file."""
    emit(kind, ServeSettings(path="x", name="n\u00e9e \U0001f600"), str(tmp_path / "out"))
    (file,) = (tmp_path / "out").glob("*.yaml")
    document = next(yaml.safe_load_all(file.read_text()))
    spec = document["spec"]
    pod = spec["predictor"] if kind == "kserve" else spec["template"]["spec"]
    assert "n\u00e9e \U0001f600" in pod["containers"][0]["args"]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--image .* is no name of an image"):
        emit("docker", ServeSettings(path="x"), str(tmp_path / "out"), image="x\nRUN evil")
    with pytest.raises(UserError, match="without slashes and control characters"):
        ServeSettings(path="x", name="two\nlines").check()
    with pytest.raises(UserError, match="--tls-cert"):
        emit("k8s", ServeSettings(path="x", tls_cert="a", tls_key="b"), str(tmp_path / "out"))
    with pytest.raises(UserError, match="--replicas 0"):
        emit("k8s", ServeSettings(path="x"), str(tmp_path / "out"), replicas=0)


def test_the_token_is_never_written(tmp_path: Path) -> None:
    emit("k8s", ServeSettings(path="x", token="very secret"), str(tmp_path / "out"))
    assert all("very secret" not in file.read_text() for file in (tmp_path / "out").iterdir())


def test_names_that_kubernetes_accepts() -> None:
    assert resource_name("runs/My Run_1") == "runs-my-run-1"
    assert resource_name("50 Layers") == "model-50-layers"
    assert len(resource_name("x" * 200)) <= 50


def test_a_target_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        emit("k8s", ServeSettings(path="x"), str(tmp_path))
    with pytest.raises(UserError, match="did you mean 'k8s'"):
        emit("k8", ServeSettings(path="x"), str(tmp_path / "new"))
    with pytest.raises(UserError, match="--out"):
        emit("k8s", ServeSettings(path="x"), None)


def test_from_the_command_line(conveyor: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, out, _ = conveyor("serve", "some/run", "--emit", "kserve", "--out", tmp_path / "files")
    assert code == 0
    assert sorted(os.listdir(tmp_path / "files")) == ["Dockerfile", "kserve.yaml"]
    assert "written to" in out


def test_dockerfile_has_no_secrets_and_no_root(tmp_path: Path) -> None:
    emit("docker", ServeSettings(path="x"), str(tmp_path / "out"))
    lines = (tmp_path / "out" / "Dockerfile").read_text().splitlines()
    assert any(line.startswith("USER ") and line.split()[1] != "root" for line in lines)
    assert [line for line in lines if line.startswith("CMD [")]


def test_a_name_that_yaml_would_read_as_something_else(tmp_path: Path) -> None:
    settings, out = ServeSettings(path="x", name="true"), tmp_path / "out"
    (file,) = [path for path in emit("k8s", settings, str(out), image="null") if path.suffix == ".yaml"]
    for document in yaml.safe_load_all(file.read_text()):
        jsonschema.validate(document, RESOURCE)
        assert document["metadata"]["name"] == "true"
