"""Manifests have the fields that the cluster's own schemas demand."""

import re
import subprocess
from typing import Any

import jsonschema
import pytest
import yaml

from conveyor.errors import UserError
from conveyor.launch.job import LaunchPlan
from conveyor.launch.manifests import Cluster, emit

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
    "properties": {"cpu": QUANTITY, "memory": QUANTITY, "nvidia.com/gpu": {"type": "integer", "minimum": 1}},
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
CLUSTER = Cluster(num_hosts=2, cpus=3, memory="2.5Gi", gpus=1)


def emitted(kind: str, cluster: Cluster) -> dict[str, Any]:
    """The job's manifest; the secret that its pods refer to comes before it."""
    *secrets, manifest = yaml.safe_load_all(emit(kind, PROGRAM, PLAN, cluster))
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
    assert container["resources"]["limits"] == {"cpu": "6", "memory": "5Gi", "nvidia.com/gpu": 2}
    assert {"name": "CONVEYOR_REPLICAS", "value": "8"} in container["env"]


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
    pods = emitted("jobset", elastic)
    command = pods["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[command.index("--min-hosts") + 1] == "1"


def test_slurm_script() -> None:
    script = emit(
        "slurm", [*PROGRAM, "--name", "it's"], PLAN, Cluster(num_hosts=2, cpus=3, time="1-12:00:00", partition="big")
    )
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    headers = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=2" in headers
    assert "#SBATCH --ntasks-per-node=2" in headers
    assert "#SBATCH --cpus-per-task=3" in headers
    assert script.index("#SBATCH --requeue") < script.index("set -euo"), "directives come before the first command"
    assert "export CONVEYOR_REPLICAS=8" in script
    made = next(line for line in script.splitlines() if line.startswith("export CONVEYOR_SECRET="))
    shown = subprocess.run(["bash"], input=f"{made}\necho $CONVEYOR_SECRET", text=True, capture_output=True, check=True)
    assert re.fullmatch("[0-9a-f]{64}\n", shown.stdout)
    assert "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK" in script
    assert """srun --kill-on-bad-exit=1 conveyor train --data cifar10 --name 'it'"'"'s'""" in script


@pytest.mark.parametrize(
    ("kind", "plan", "cluster", "message"),
    [
        ("k8s", LaunchPlan(job="Night_Run"), Cluster(), "small letters"),
        ("k8s", PLAN, Cluster(memory="much"), "512Mi"),
        ("slurm", PLAN, Cluster(time="soon"), "time of SLURM"),
        ("slurm", PLAN, Cluster(num_hosts=3), "multiple of 3"),
    ],
)
def test_mistakes_are_found_before_the_cluster_does(
    kind: str, plan: LaunchPlan, cluster: Cluster, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        emit(kind, PROGRAM, plan, cluster)
