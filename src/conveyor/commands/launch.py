"""`conveyor launch`: start the workers of a job on this machine, on many, or as a manifest for a cluster."""

import argparse
import os
import shlex
import shutil
import signal
import sys
import threading
from typing import TYPE_CHECKING

from conveyor import commands
from conveyor.errors import UserError
from conveyor.monitor.progress import say_aside
from conveyor.options.coerce import checked
from conveyor.options.parser import add, add_settings, count, settings_from

if TYPE_CHECKING:
    from conveyor.launch.job import LaunchPlan

HELP = "Start any program as several workers: here, on many machines, or as a SLURM or Kubernetes job."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from conveyor.launch.cluster import Cluster
    from conveyor.launch.job import LaunchPlan

    job = parser.add_argument_group("Job")
    job.add_argument("--instances", type=int, metavar="N", help="Worker processes in all; default: --replicas, or 1.")
    job.add_argument("--workers", type=int, metavar="N", help=argparse.SUPPRESS)
    add_settings(job, LaunchPlan, "replicas", "devices_per_replica", "job", "max_restarts")
    job.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help="Variable for every worker.")
    job.add_argument("--tag-output", action="store_true", help="Begin each line with the worker's number.")
    machine = parser.add_argument_group("Machines")
    machine.add_argument(
        "--hosts", default="", metavar="A,B,...", help="Machines (also node[01-04]); default: this one."
    )
    add(machine, "--host-index", int, "I", "Start only the share of host I of --hosts.")
    add_settings(machine, LaunchPlan, "min_hosts", "port", "interface", "secret_file", "numa", "threads")
    machine.add_argument("--print", action="store_true", dest="show", help="Print the command of each host and stop.")
    cluster = parser.add_argument_group("Clusters")
    cluster.add_argument(
        "--emit",
        choices=("slurm", "k8s", "trainjob", "jobset", "sky"),
        help="Print a batch script or manifest and stop: SLURM; Kubeflow v1 (PyTorchJob) or v2 (TrainJob); JobSet; SkyPilot.",
    )
    add(cluster, "--nodes", int, "N", "Machines of the emitted job; default: those of --hosts.", count)
    add_settings(cluster, Cluster, "image", "namespace")
    cluster.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="SOURCE:PATH",
        help="For data and run folder: a claim (Kubernetes) or bucket (SkyPilot), and where the workers see it.",
    )
    add_settings(cluster, Cluster, "cpus", "memory", "gpus", "gpu_type", "time", "partition", "array")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="-- and the command of a worker.")


def run(arguments: argparse.Namespace) -> int:
    from conveyor.launch import hosts, manifests
    from conveyor.launch.cluster import Cluster
    from conveyor.launch.cores import describe
    from conveyor.launch.job import LaunchPlan
    from conveyor.launch.rank import expand_hosts

    argv = [word for index, word in enumerate(arguments.program) if index or word != "--"]
    if not argv:
        raise UserError(
            "there is nothing to start: give the command of a worker, as in `conveyor launch -- conveyor train`."
        )
    if argv[0] in commands.ALL and shutil.which(argv[0]) is None:
        raise UserError(f"{argv[0]} is a command of conveyor, not a program: write `-- conveyor {argv[0]} ...`.")
    names = tuple(expand_hosts(arguments.hosts))
    asked = [number for number in (arguments.instances, arguments.replicas) if number is not None]
    plan = checked(
        settings_from(
            LaunchPlan,
            arguments,
            instances=asked[0] if asked else max(1, len(names)),
            hosts=names,
            this_host=arguments.host_index,
            min_hosts=arguments.min_hosts if not arguments.emit else None,
            secret=_secret_from_input() if arguments.secret_file == "-" else "",
            environment=dict(_variable(text) for text in arguments.env),
            tagged=arguments.tag_output,
        )
    )
    if arguments.emit:
        machines = {"num_hosts": arguments.nodes or plan.num_hosts, "volumes": tuple(arguments.volume)}
        cluster = checked(settings_from(Cluster, arguments, **machines))
        print(manifests.emit(arguments.emit, argv, plan, cluster), end="")
        return 0
    if arguments.show:
        for host, command in hosts.commands(argv, plan):
            print(f"{host}: {shlex.join(command)}")
        return 0
    say_aside(f"launch: {describe(plan.budgets())}")
    # Read when torch is loaded: without this its store prints a stack trace whenever a machine leaves.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return run_job(argv, plan)


def run_job(argv: list[str], plan: "LaunchPlan") -> int:
    """Run the job; returns the exit code and has said why when it is not 0."""
    from conveyor.launch import hosts
    from conveyor.launch.agent import JobFailedError, JobInterruptedError

    try:
        hosts.run(argv, plan)
    except JobFailedError as error:
        say_aside(f"conveyor: error: {error}")
        return error.failure.exit_code if error.failure.exit_code > 0 else 128 - error.failure.exit_code
    except JobInterruptedError as stopped:
        say_aside(f"conveyor: {stopped}")
        return 128 + stopped.number
    return 0


def _secret_from_input() -> str:
    """The secret from standard input, where the launcher of the whole job writes it; end of file ends this share."""

    def end_at_end_of_file() -> None:
        # Not through sys.stdin: its lock would be held when the interpreter ends.
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    secret = sys.stdin.buffer.readline().decode().strip()
    threading.Thread(target=end_at_end_of_file, daemon=True).start()
    return secret


def _variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE`, or `NAME` for the value it has here."""
    name, equals, value = text.partition("=")
    if not name.isidentifier():
        raise UserError(f"--env {text}: {name!r} is no name of a variable; write NAME or NAME=VALUE.")
    if not equals and name not in os.environ:
        raise UserError(f"--env {name}: the variable is not set here; give it a value with --env {name}=VALUE.")
    return name, value if equals else os.environ[name]
