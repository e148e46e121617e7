"""A job as a batch script for SLURM or as a manifest for Kubernetes, made from a `LaunchPlan`."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from conveyor.errors import UserError
from conveyor.launch import secret
from conveyor.launch.job import DEFAULT_PORT, LaunchPlan, host_command
from conveyor.launch.slurm_script import slurm_script

KINDS = ("slurm", "k8s", "jobset")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a cluster's scheduler needs besides the plan."""

    num_hosts: int = 1
    min_hosts: int | None = None
    """Elastic: the job goes on with so many machines; default: all."""
    image: str = "conveyor:latest"
    namespace: str = "default"
    cpus: int = 1
    """Cores of each worker."""
    memory: str = "4Gi"
    """Memory of each worker."""
    gpus: int = 0
    """GPUs of each worker."""
    time: str | None = None
    """Time limit of SLURM."""
    partition: str | None = None
    array: str | None = None
    """Indices of a job array of SLURM."""


def emit(kind: str, argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> str:
    """The script or manifest as text."""
    if not argv:
        raise UserError("there is nothing to start: give the command of a worker after --.")
    if plan.num_workers % cluster.num_hosts:
        raise UserError(
            f"{plan.num_workers} workers cannot be spread evenly over {cluster.num_hosts} machines: "
            f"choose a multiple of {cluster.num_hosts}."
        )
    if kind == "slurm":
        return slurm_script(
            argv,
            plan,
            _variables(plan),
            name=_name(plan.job),
            nodes=cluster.num_hosts,
            cpus=plan.threads or cluster.cpus,
            gpus=cluster.gpus,
            time=cluster.time,
            partition=_name(cluster.partition) if cluster.partition else None,
            array=cluster.array,
        )
    import yaml

    make = {"k8s": pytorch_job, "jobset": job_set}[kind]
    manifests = [make(argv, plan, cluster)]
    if cluster.num_hosts > 1:
        manifests.insert(0, job_secret(plan, cluster))
    return str(yaml.safe_dump_all(manifests, sort_keys=False))


def job_secret(plan: LaunchPlan, cluster: Cluster) -> dict[str, Any]:
    """A fresh secret for the pods of a job."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _name(plan.job), "namespace": _name(cluster.namespace)},
        "type": "Opaque",
        "stringData": {"secret": secret.new()},
    }


def pytorch_job(argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> dict[str, Any]:
    """A PyTorchJob of the Kubeflow training operator: our launcher on each pod, elastic between min and max hosts.

    Not torchrun: its rendezvous asks for no secret.
    """
    per_host = plan.num_workers // cluster.num_hosts
    hosts = [f"{_name(plan.job)}-worker-{index}" for index in range(cluster.num_hosts)]
    template = _pod(_command(argv, plan, cluster, hosts, "$(REPLICA_INDEX)"), plan, cluster, per_host, name="pytorch")
    # The operator labels each pod with its number.
    label = "metadata.labels['training.kubeflow.org/replica-index']"
    template["spec"]["containers"][0]["env"] += [
        {"name": "REPLICA_INDEX", "valueFrom": {"fieldRef": {"fieldPath": label}}}
    ]
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": _name(plan.job), "namespace": _name(cluster.namespace)},
        "spec": {
            "nprocPerNode": str(per_host),
            "elasticPolicy": {
                "rdzvBackend": "c10d",
                "rdzvPort": plan.port or DEFAULT_PORT,
                "minReplicas": cluster.min_hosts or cluster.num_hosts,
                "maxReplicas": cluster.num_hosts,
                "maxRestarts": plan.max_restarts,
            },
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": cluster.num_hosts,
                    "restartPolicy": "OnFailure",
                    "template": template,
                }
            },
        },
    }


def job_set(argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> dict[str, Any]:
    """A JobSet: one indexed job whose pods find each other by name."""
    name = _name(plan.job)
    hosts = [f"{name}-workers-0-{index}.{name}" for index in range(cluster.num_hosts)]
    per_host = plan.num_workers // cluster.num_hosts
    command = _command(argv, plan, cluster, hosts, "$(JOB_COMPLETION_INDEX)")
    template = _pod(command, plan, cluster, per_host, name="worker")
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": _name(cluster.namespace)},
        "spec": {
            "failurePolicy": {"maxRestarts": plan.max_restarts},
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": [
                {
                    "name": "workers",
                    "replicas": 1,
                    "template": {
                        "spec": {
                            "parallelism": cluster.num_hosts,
                            "completions": cluster.num_hosts,
                            "completionMode": "Indexed",
                            "backoffLimit": 0,
                            "template": template,
                        }
                    },
                }
            ],
        },
    }


def _command(
    argv: Sequence[str], plan: LaunchPlan, cluster: Cluster, hosts: Sequence[str], index: str
) -> Sequence[str]:
    """What each pod runs; Kubernetes replaces `$(NAME)` in `index` by the variable's value."""
    if cluster.num_hosts == 1:
        return ["conveyor", "launch", "--instances", str(plan.num_workers), "--", *argv]
    port = plan.port or DEFAULT_PORT
    shared = dataclasses.replace(plan, hosts=tuple(hosts), port=port, min_hosts=cluster.min_hosts)
    command = host_command(shared, 0, argv)
    command[command.index("--host-index") + 1] = index
    return command


def _pod(command: Sequence[str], plan: LaunchPlan, cluster: Cluster, per_host: int, name: str) -> dict[str, Any]:
    if not re.fullmatch(r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|K|M|G|T)?", cluster.memory):
        raise UserError(f"--memory {cluster.memory!r} is not an amount such as 4Gi or 512Mi.")
    number, unit = re.fullmatch(r"([\d.]+)(.*)", cluster.memory).groups()  # type: ignore[union-attr]
    amounts: dict[str, Any] = {
        "cpu": str(per_host * (plan.threads or cluster.cpus)),
        "memory": f"{per_host * float(number):g}{unit}",
    }
    if cluster.gpus:
        amounts["nvidia.com/gpu"] = per_host * cluster.gpus
    variables = _variables(plan)
    if cluster.min_hosts is not None:
        # Pods that are replaced resume the run that they find.
        variables["CONVEYOR_ELASTIC"] = "1"
    env: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in sorted(variables.items())]
    if cluster.num_hosts > 1:
        held = {"secretKeyRef": {"name": plan.job, "key": "secret"}}
        env.append({"name": secret.VARIABLE, "valueFrom": held})
    container = {
        "name": name,
        "image": cluster.image,
        "command": list(command),
        "env": env,
        "resources": {"requests": amounts, "limits": dict(amounts)},
    }
    return {"spec": {"containers": [container]}}


def _variables(plan: LaunchPlan) -> dict[str, str]:
    """The environment variables of every worker, however it is started."""
    variables = dict(plan.environment)
    if plan.replicas is not None:
        variables |= {"CONVEYOR_REPLICAS": str(plan.replicas), "CONVEYOR_INSTANCES": str(plan.instances)}
    return variables


def _name(text: str) -> str:
    """Kubernetes' rule for names, which SLURM accepts as well."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise UserError(
            f"the name {text!r} must consist of small letters, digits and dashes, at most 63, no dash at an end."
        )
    return text
