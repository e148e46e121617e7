"""Manifests have the fields that the schemas of Kubernetes, Kubeflow and JobSet demand.

The schemas below are short forms. `make peers` (and `make conformance`) installs the projects' own types beside the
package. Their CRDs are in no package of PyPI, npm or Debian: CONVEYOR_CRDS names a folder of them as YAML files, and the
manifests are held against these too, with the CEL rules evaluated.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from conveyor.launch.cluster import Cluster
from conveyor.launch.job import LaunchPlan
from conveyor.launch.manifests import emit

NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
QUANTITY = {"type": "string", "pattern": r"^\d+(\.\d+)?(Ki|Mi|Gi|Ti|m)?$"}
METADATA = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": NAME, "namespace": NAME},
    "additionalProperties": False,
}
AMOUNTS = {
    "type": "object",
    "properties": {"cpu": QUANTITY, "memory": QUANTITY, "nvidia.com/gpu": QUANTITY},
    "additionalProperties": False,
}
CONTAINER = {
    "type": "object",
    "required": ["name", "image"],
    "properties": {
        "name": NAME,
        "image": {"type": "string", "minLength": 1},
        "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "env": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "value": {"type": "string"},
                    "valueFrom": {
                        "type": "object",
                        "minProperties": 1,
                        "properties": {
                            "fieldRef": {"type": "object", "required": ["fieldPath"]},
                            "secretKeyRef": {"type": "object", "required": ["name", "key"]},
                        },
                        "additionalProperties": False,
                    },
                },
                "oneOf": [{"required": ["value"]}, {"required": ["valueFrom"]}],
                "additionalProperties": False,
            },
        },
        "resources": {
            "type": "object",
            "properties": {"requests": AMOUNTS, "limits": AMOUNTS},
            "additionalProperties": False,
        },
        "volumeMounts": {"type": "array", "items": {"type": "object", "required": ["name", "mountPath"]}},
    },
    "additionalProperties": False,
}
POD = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["containers"],
            "properties": {
                "containers": {"type": "array", "items": CONTAINER, "minItems": 1},
                "restartPolicy": {"enum": ["Never", "OnFailure"]},
                "terminationGracePeriodSeconds": {"type": "integer", "minimum": 31},
                "volumes": {"type": "array", "items": {"type": "object", "required": ["name"], "maxProperties": 2}},
            },
            "additionalProperties": False,
        }
    },
    "additionalProperties": False,
}
COUNT = {"type": "integer", "minimum": 1}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


PYTORCH_JOB = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "kubeflow.org/v1"},
    kind={"const": "PyTorchJob"},
    metadata=METADATA,
    spec=closed(
        ["pytorchReplicaSpecs"],
        nprocPerNode={"type": "string", "pattern": r"^(\d+|auto|cpu|gpu)$"},
        elasticPolicy=closed(
            [],
            rdzvBackend={"enum": ["c10d", "etcd", "etcd-v2"]},
            rdzvPort={"type": "integer", "minimum": 1, "maximum": 65535},
            minReplicas=COUNT,
            maxReplicas=COUNT,
            maxRestarts={"type": "integer", "minimum": 0},
        ),
        runPolicy=closed([], backoffLimit=COUNT),
        pytorchReplicaSpecs=closed(
            ["Worker"],
            Worker=closed(
                ["replicas", "template"],
                replicas=COUNT,
                restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
                template=POD,
            ),
        ),
    ),
)
JOB_SET = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=METADATA,
    spec=closed(
        ["replicatedJobs"],
        failurePolicy=closed([], maxRestarts={"type": "integer", "minimum": 0}),
        network=closed([], enableDNSHostnames={"type": "boolean"}),
        replicatedJobs={
            "type": "array",
            "minItems": 1,
            "items": closed(
                ["name", "template"],
                name=NAME,
                replicas=COUNT,
                template=closed(
                    ["spec"],
                    spec=closed(
                        ["template"],
                        parallelism=COUNT,
                        completions=COUNT,
                        completionMode={"enum": ["Indexed", "NonIndexed"]},
                        backoffLimit={"type": "integer", "minimum": 0},
                        template=POD,
                    ),
                ),
            ),
        },
    ),
)
PROGRAM = ["conveyor", "train", "--data", "cifar10"]
PLAN = LaunchPlan(instances=4, replicas=8, job="night-run", environment={"DATA_DIR": "/data"}, max_restarts=3)
CLUSTER = Cluster(num_hosts=2, cpus=3, memory="2.5Gi", gpus=1, volumes=("images:/data", "runs:/runs"))
PEERS = Path(os.environ.get("CONVEYOR_PEERS") or ".peers").resolve() / "cluster"
SCHEMAS = Path(__file__).with_name("cluster_schemas.py")


def emitted(kind: str, cluster: Cluster) -> dict[str, Any]:
    """The job's manifest; the secret that its pods refer to comes before it."""
    *others, manifest = yaml.safe_load_all(emit(kind, PROGRAM, PLAN, cluster))
    secrets = [one for one in others if one["kind"] == "Secret"]
    assert len(secrets) == (cluster.num_hosts > 1)
    for secret in secrets:
        assert secret["kind"] == "Secret"
        assert len(secret["stringData"]["secret"]) >= 32
        held = {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "secret"}}
        assert str(held) in str(manifest), "the pods are given it"
        assert secret["stringData"]["secret"] not in str(manifest)
    return dict(manifest)


def test_pytorch_job() -> None:
    manifest = emitted("k8s", CLUSTER)
    jsonschema.validate(manifest, PYTORCH_JOB)
    worker = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
    container = worker["template"]["spec"]["containers"][0]
    assert container["name"] == "pytorch", "the operator looks for this name"
    command = container["command"]
    assert command[command.index("--hosts") + 1] == "night-run-worker-0,night-run-worker-1"
    assert command[command.index("--host-index") + 1] == "$(REPLICA_INDEX)"
    assert (worker["replicas"], manifest["spec"]["nprocPerNode"]) == (2, "2")
    assert container["resources"]["limits"] == {"cpu": "6", "memory": "5Gi", "nvidia.com/gpu": "2"}
    assert {"name": "CONVEYOR_REPLICAS", "value": "8"} in container["env"]
    assert (worker["restartPolicy"], manifest["spec"]["runPolicy"]) == ("OnFailure", {"backoffLimit": 3})
    never = dict(yaml.safe_load(emit("k8s", PROGRAM, LaunchPlan(), Cluster())))
    jsonschema.validate(never, PYTORCH_JOB)
    assert never["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("kind", ["k8s", "jobset", "trainjob"])
def test_every_pod_has_its_volumes_shared_memory_and_time_to_save(kind: str) -> None:
    pod = find(emitted(kind, CLUSTER), "terminationGracePeriodSeconds")
    assert pod["terminationGracePeriodSeconds"] > PLAN.grace
    volumes = {one["name"]: one for one in pod["volumes"]}
    seen = {one["mountPath"]: volumes[one["name"]] for one in pod["containers"][0]["volumeMounts"]}
    assert seen["/dev/shm"]["emptyDir"] == {"medium": "Memory"}
    assert seen["/data"]["persistentVolumeClaim"] == {"claimName": "images"}
    assert seen["/runs"]["persistentVolumeClaim"] == {"claimName": "runs"}


def test_job_set() -> None:
    manifest = emitted("jobset", CLUSTER)
    jsonschema.validate(manifest, JOB_SET)
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    command = job["template"]["spec"]["containers"][0]["command"]
    assert job["completionMode"] == "Indexed"
    assert command[command.index("--host-index") + 1] == "$(JOB_COMPLETION_INDEX)"
    assert command[command.index("--hosts") + 1] == "night-run-workers-0-0.night-run,night-run-workers-0-1.night-run"
    single = emitted("jobset", Cluster())
    jsonschema.validate(single, JOB_SET)


def test_pods_that_come_and_go_take_up_the_run() -> None:
    elastic = Cluster(num_hosts=2, min_hosts=1)
    manifest = emitted("k8s", elastic)
    jsonschema.validate(manifest, PYTORCH_JOB)
    assert manifest["spec"]["elasticPolicy"]["minReplicas"] == 1
    container = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert {"name": "CONVEYOR_ELASTIC", "value": "1"} in container["env"]


def find(tree: Any, key: str) -> Any:
    """The first mapping that has `key`."""
    if isinstance(tree, dict) and key in tree:
        return tree
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return next((found for part in parts if (found := find(part, key)) is not None), None)


def test_train_job() -> None:
    plain = dict(yaml.safe_load(emit("trainjob", PROGRAM, LaunchPlan(instances=2), Cluster())))
    assert plain["spec"]["runtimeRef"]["name"] == "torch-distributed"
    assert plain["spec"]["trainer"]["command"][:4] == ["conveyor", "launch", "--instances", "2"]
    manifest = emitted("trainjob", CLUSTER)
    trainer = manifest["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 2)
    command = trainer["command"]
    assert command[command.index("--hosts") + 1] == "night-run-node-0-0.night-run,night-run-node-0-1.night-run"
    assert command[command.index("--max-restarts") + 1] == "3"
    assert {"name": "DATA_DIR", "value": "/data"} in trainer["env"]


def test_the_restarts_of_a_train_job_are_those_of_a_runtime_of_its_own() -> None:
    _, runtime, job = yaml.safe_load_all(emit("trainjob", PROGRAM, PLAN, CLUSTER))
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }
    jobs = runtime["spec"]["template"]["spec"]
    assert jobs["failurePolicy"] == {"maxRestarts": 3}
    (one,) = jobs["replicatedJobs"]
    assert (
        one["name"]
        == job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["name"]
    )
    assert one["template"]["spec"]["backoffLimit"] == 0


def by_projects(kind: str, text: str) -> "subprocess.CompletedProcess[str]":
    """What the program for the projects' own types says of these manifests."""
    if not (PEERS / ".all").exists():
        pytest.skip("make peers installs the types of Kubeflow and SkyPilot")
    command = [str(PEERS / "bin/python"), str(SCHEMAS), kind]
    return subprocess.run(command, input=text, text=True, capture_output=True, timeout=280, check=False)


def many(kinds: tuple[str, ...], volumes: tuple[str, ...] = CLUSTER.volumes) -> str:
    """Manifests of these kinds with and without restarts, on one node and on two."""
    return "---\n".join(
        emit(kind, PROGRAM, plan, Cluster(num_hosts=nodes, gpus=1, gpu_type="A100", volumes=volumes))
        for kind in kinds
        for plan in (PLAN, LaunchPlan(instances=2))
        for nodes in (1, 2)
    )


@pytest.mark.conformance
@pytest.mark.parametrize("kinds", [("k8s", "jobset", "trainjob"), ("sky",)])
def test_the_projects_own_types_take_it(kinds: tuple[str, ...]) -> None:
    text = many(kinds, ("s3://images:/data",) if kinds == ("sky",) else CLUSTER.volumes)
    done = by_projects(kinds[0], text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("taken\n")
    wrong = text.replace("num_nodes:" if kinds == ("sky",) else "completionMode:", "numberOf:")
    refused = by_projects(kinds[0], wrong)
    assert refused.returncode == 1
    assert "numberOf" in refused.stderr


@pytest.mark.conformance
def test_the_projects_crds_take_it() -> None:
    if not os.environ.get("CONVEYOR_CRDS"):
        pytest.skip(
            "no package carries the CRDs: put manifests/base/crds/*.yaml of kubeflow/trainer v2.3.0 (not its kustomization), "
            "kubeflow.org_pytorchjobs.yaml of kubeflow/training-operator v1.9.0 from the same place, and "
            "config/components/crd/bases/*.yaml of kubernetes-sigs/jobset v0.12.0 into one folder, and set CONVEYOR_CRDS to it"
        )
    text = many(("k8s", "jobset", "trainjob"))
    done = by_projects("crds", text)
    assert done.returncode == 0, done.stderr
    assert {line.partition(":")[0] for line in done.stdout.splitlines()[:-1]} == {
        "PyTorchJob", "JobSet", "TrainJob", "TrainingRuntime",
    }  # fmt: skip
    rules = [int(line.split()[-3]) for line in done.stdout.splitlines() if line.startswith("TrainJob:")]
    assert min(rules) >= 2, done.stdout
    for right, wrong, why in (
        ("name: night-run\n", "name: 1-night\n", "must match RFC 1035"),
        ("numProcPerNode:", "processes:", "processes"),
    ):
        refused = by_projects("crds", text.replace(right, wrong))
        assert refused.returncode == 1
        assert why in refused.stderr
