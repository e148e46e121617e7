"""A job as manifests for Kubernetes: PyTorchJob (Kubeflow v1), TrainJob (Kubeflow Trainer v2) or JobSet.

Each pod runs our launcher, not torchrun, whose rendezvous asks for no secret. `--max-restarts N` means N restarts of
the workers by the launcher (the others keep the state in memory) and as many restarts of the pods, which resume the run
that they find (CONVEYOR_ELASTIC).
"""

from collections.abc import Sequence
from typing import Any

from conveyor.errors import UserError
from conveyor.launch import secret
from conveyor.launch.cluster import Cluster, name, variables
from conveyor.launch.job import DEFAULT_PORT, LaunchPlan

END_SECONDS = 30
"""What a pod gets besides the time in which its workers save and end."""
INDEX = "$(JOB_COMPLETION_INDEX)"
"""Kubernetes replaces `$(NAME)` in a command by the variable's value; this one is set in every pod of an indexed job."""
MAX_LABEL = 63
TRAINER_API = "trainer.kubeflow.org/v1alpha1"
TRAINER_JOB = "node"
"""What the operator of Trainer v2 calls the job of the training pods and their container."""

Manifest = dict[str, Any]


def manifests(kind: str, argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> list[Manifest]:
    """The documents of the job, in the order in which they are to be applied."""
    if cluster.min_hosts is not None and kind != "k8s":
        raise UserError(
            f"--min-hosts does not go with --emit {kind}, which starts all pods again when one is lost: use --emit k8s "
            "for pods that come and go, or --max-restarts."
        )
    make = {"k8s": pytorch_job, "jobset": job_set, "trainjob": train_job}[kind]
    found = make(argv, plan, cluster)
    return [_job_secret(plan, cluster), *found] if cluster.num_hosts > 1 else found


def pytorch_job(argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> list[Manifest]:
    """A PyTorchJob of the Kubeflow training operator (v1): elastic between min and max hosts."""
    hosts = _pods(plan, cluster, "worker")
    pod = _pod("pytorch", cluster.command(argv, plan, hosts, "$(REPLICA_INDEX)"), plan, cluster)
    # The operator labels each pod with its number.
    label = "metadata.labels['training.kubeflow.org/replica-index']"
    pod["spec"]["containers"][0]["env"] += [{"name": "REPLICA_INDEX", "valueFrom": {"fieldRef": {"fieldPath": label}}}]
    replaced = plan.max_restarts > 0 or cluster.min_hosts is not None
    worker = {
        "replicas": cluster.num_hosts,
        "restartPolicy": "OnFailure" if replaced else "Never",
        "template": pod,
    }
    elastic = {
        "rdzvBackend": "c10d",
        "rdzvPort": plan.port or DEFAULT_PORT,
        "minReplicas": cluster.min_hosts or cluster.num_hosts,
        "maxReplicas": cluster.num_hosts,
        "maxRestarts": plan.max_restarts,
    }
    spec: Manifest = {"nprocPerNode": str(cluster.workers(plan)), "elasticPolicy": elastic}
    if plan.max_restarts:
        spec["runPolicy"] = {"backoffLimit": plan.max_restarts}
    spec["pytorchReplicaSpecs"] = {"Worker": worker}
    return [_document("kubeflow.org/v1", "PyTorchJob", plan, cluster, spec)]


def job_set(argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> list[Manifest]:
    """A JobSet: one indexed job whose pods find each other by name."""
    pod = _pod("worker", cluster.command(argv, plan, _indexed_hosts(plan, cluster, "workers"), INDEX), plan, cluster)
    return [
        _document("jobset.x-k8s.io/v1alpha2", "JobSet", plan, cluster, _job_set_spec("workers", pod, plan, cluster))
    ]


def train_job(argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> list[Manifest]:
    """A TrainJob of Kubeflow Trainer v2, on the cluster's runtime torch-distributed.

    A TrainJob cannot say how often pods are replaced, a runtime can: with `--max-restarts` the job brings a runtime of
    its own, else the cluster's policy holds.
    """
    command = cluster.command(argv, plan, _indexed_hosts(plan, cluster, TRAINER_JOB), INDEX)
    pod = _pod(TRAINER_JOB, command, plan, cluster)["spec"]
    container = pod["containers"][0]
    patch = {
        "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"],
        "volumes": pod["volumes"],
        "containers": [{"name": TRAINER_JOB, "volumeMounts": container["volumeMounts"]}],
    }
    job = {"name": TRAINER_JOB, "template": {"spec": {"template": {"spec": patch}}}}
    patches = [
        {
            "manager": "conveyor/launch",
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
        }
    ]
    trainer = {
        "image": cluster.image,
        "command": container["command"],
        "env": container["env"],
        "numNodes": cluster.num_hosts,
        "numProcPerNode": cluster.workers(plan),
        "resourcesPerNode": container["resources"],
    }
    runtime = [] if not plan.max_restarts else [_training_runtime(plan, cluster)]
    kind, runtime_name = ("TrainingRuntime", plan.job) if runtime else ("ClusterTrainingRuntime", "torch-distributed")
    reference = {"apiGroup": TRAINER_API.partition("/")[0], "kind": kind, "name": runtime_name}
    spec = {"runtimeRef": reference, "trainer": trainer, "runtimePatches": patches}
    return [*runtime, _document(TRAINER_API, "TrainJob", plan, cluster, spec)]


def _training_runtime(plan: LaunchPlan, cluster: Cluster) -> Manifest:
    """torch-distributed with the restarts that were asked for."""
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": TRAINER_JOB, "image": cluster.image}]}}
    jobs = _job_set_spec(TRAINER_JOB, pod, plan, cluster)
    jobs["replicatedJobs"][0]["template"]["metadata"] = {
        "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    }
    spec = {"mlPolicy": {"numNodes": cluster.num_hosts, "torch": {}}, "template": {"spec": jobs}}
    found = _document(TRAINER_API, "TrainingRuntime", plan, cluster, spec)
    found["metadata"]["labels"] = {"trainer.kubeflow.org/framework": "torch"}
    return found


def _job_set_spec(job: str, pod: Manifest, plan: LaunchPlan, cluster: Cluster) -> Manifest:
    """One indexed job; a pod that is lost makes the JobSet start all of them again, `--max-restarts` times."""
    pod["spec"]["restartPolicy"] = "Never"
    spec = {
        "parallelism": cluster.num_hosts,
        "completions": cluster.num_hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": pod,
    }
    return {
        "failurePolicy": {"maxRestarts": plan.max_restarts},
        "network": {"enableDNSHostnames": True},
        "replicatedJobs": [{"name": job, "replicas": 1, "template": {"spec": spec}}],
    }


def _indexed_hosts(plan: LaunchPlan, cluster: Cluster, job: str) -> list[str]:
    """The names that a JobSet gives to the pods of its job."""
    return [f"{pod}.{plan.job}" for pod in _pods(plan, cluster, f"{job}-0")]


def _pods(plan: LaunchPlan, cluster: Cluster, job: str) -> list[str]:
    """The names of the pods, to which Kubernetes adds six characters; each is a label of DNS, too."""
    found = [f"{name(plan.job)}-{job}-{index}" for index in range(cluster.num_hosts)]
    most = MAX_LABEL - 6 - len(found[-1]) + len(plan.job)
    if not plan.job[0].isalpha() or len(plan.job) > most:
        raise UserError(
            f"the name {plan.job!r} must begin with a letter and have at most {most} characters: its pods are called "
            f"{found[-1]}."
        )
    return found


def _pod(container: str, command: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> Manifest:
    number, unit = cluster.memory_of(plan)
    amounts: Manifest = {"cpu": str(cluster.cores(plan)), "memory": f"{number:g}{unit}"}
    if cluster.gpus:
        amounts["nvidia.com/gpu"] = str(cluster.workers(plan) * cluster.gpus)
    found = variables(plan) | {"CONVEYOR_ELASTIC": "1"}
    env: list[Manifest] = [{"name": key, "value": value} for key, value in sorted(found.items())]
    if cluster.num_hosts > 1:
        held = {"secretKeyRef": {"name": plan.job, "key": "secret"}}
        env.append({"name": secret.VARIABLE, "valueFrom": held})
    claims = cluster.mounts()
    # What processes share (loaders, NCCL) is in /dev/shm, of which a container has 64 MiB otherwise.
    volumes: list[Manifest] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    volumes += [
        {"name": f"volume-{index}", "persistentVolumeClaim": {"claimName": name(claim)}}
        for index, (claim, _) in enumerate(claims)
    ]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    mounts += [{"name": f"volume-{index}", "mountPath": path} for index, (_, path) in enumerate(claims)]
    one = {
        "name": container,
        "image": cluster.image,
        "command": list(command),
        "env": env,
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "volumeMounts": mounts,
    }
    grace = plan.grace + END_SECONDS
    return {"spec": {"terminationGracePeriodSeconds": grace, "containers": [one], "volumes": volumes}}


def _document(api: str, kind: str, plan: LaunchPlan, cluster: Cluster, spec: Manifest) -> Manifest:
    metadata = {"name": name(plan.job), "namespace": name(cluster.namespace)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _job_secret(plan: LaunchPlan, cluster: Cluster) -> Manifest:
    """A fresh secret for the pods of a job."""
    found = _document("v1", "Secret", plan, cluster, {})
    del found["spec"]
    return found | {"type": "Opaque", "stringData": {"secret": secret.new()}}
