"""A job as a batch script for SLURM: every task of `srun` is one worker and joins by SLURM_PROCID.

| what happens | what the script does |
|---|---|
| two minutes before the time limit, or `scancel --signal=USR1` | the workers save and end with 138; the job requeues itself |
| a worker is killed | the others end; all are started again, at most `--max-restarts` times |
| a node is down | the workers notice in seconds and are started again; SLURM requeues the job when it has noticed too |
| `scancel`, or an error of a worker's own | it ends |
"""

import re
import shlex
from collections.abc import Sequence

from conveyor.errors import UserError
from conveyor.launch import failure, secret
from conveyor.launch.cluster import Cluster, name, variables
from conveyor.launch.job import LaunchPlan

SAVED = 128 + 10
"""Exit code of a run that SIGUSR1 has ended."""
SAVE_SECONDS = 120
LOST_NODE_SECONDS = 60
"""SLURM takes some minutes to notice that a node is down; until then steps cannot start there."""

LOOP = """\
starts=0 lost=0
while true; do
    export CONVEYOR_STARTS=$((${{SLURM_RESTART_COUNT:-0}} + starts))
    code=0
    srun --kill-on-bad-exit=0 --wait=60{label} {command} || code=$?
    case $code in
        {saved}) scontrol requeue "$SLURM_JOB_ID"; exit 0 ;;
        0|130|143) exit $code ;;
        {lost_peer}) lost=1 ;;
        1) [ $lost = 1 ] || exit $code ;;
        *) [ $code -gt 128 ] || exit $code ;;
    esac
    [ $starts -lt {max_restarts} ] || exit $code
    starts=$((starts + 1))
    echo "srun ended with $code: a worker or its node was lost; start $starts of {max_restarts} more"
    [ $lost = 0 ] || sleep $((starts * {pause}))
done
"""


def slurm(argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> str:
    """The text of the script. `$SLURM_...` in `argv` and in variables is replaced when the job runs."""
    cpus, array = plan.threads or cluster.cpus, cluster.array
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={name(plan.job)}",
        f"#SBATCH --nodes={cluster.num_hosts}",
        f"#SBATCH --ntasks-per-node={cluster.workers(plan)}",
        f"#SBATCH --cpus-per-task={cpus}",
    ]
    if cluster.gpus:
        # Not --gpus-per-task, which shows each task its own alone: every task sees all GPUs of its node and takes the one of
        # its number, since NCCL copies directly only between GPUs that both sides see.
        lines.append(f"#SBATCH --gpus-per-node={cluster.workers(plan) * cluster.gpus}")
    if cluster.time:
        if not re.fullmatch(r"\d+|(\d+-)?\d{1,2}(:\d{2}){0,2}", cluster.time):
            raise UserError(f"--time {cluster.time!r} is not a time of SLURM, such as 90, 2:00:00 or 1-12:00:00.")
        lines.append(f"#SBATCH --time={cluster.time}")
    if cluster.partition:
        lines.append(f"#SBATCH --partition={name(cluster.partition)}")
    if array:
        if not re.fullmatch(r"[\d,:-]+(%\d+)?", array):
            raise UserError(f"--array {array!r} is not a list of indices of SLURM, such as 0-3 or 0-15%4.")
        lines.append(f"#SBATCH --array={array}")
    # A node that dies brings the job back into the queue; its output is one file then.
    lines += [f"#SBATCH --signal=USR1@{SAVE_SECONDS}", "#SBATCH --requeue", "#SBATCH --open-mode=append"]
    lines += ["set -uo pipefail", f"export OMP_NUM_THREADS={cpus}"]
    # Since SLURM 22.05 a step does not take this over from the job by itself.
    lines.append("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK")
    # The run folder is named after it, so that every start of the job finds the same one.
    lines.append("export CONVEYOR_JOB=$SLURM_JOB_ID")
    lines += [f"export {key}={_word(value)}" for key, value in sorted(variables(plan).items())]
    # srun hands the environment on; nobody else can read it, as they could a command line.
    lines.append(f"export {secret.VARIABLE}=$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \\n')")
    if plan.interface:
        if "/" in plan.interface:
            raise UserError(
                f"--interface {plan.interface}: an emitted job needs the interface's name, not its network."
            )
        interface = shlex.quote(plan.interface)
        lines.append(f"export GLOO_SOCKET_IFNAME={interface} NCCL_SOCKET_IFNAME={interface}")
    loop = LOOP.format(
        label=" --label" if plan.tagged else "",
        command=" ".join(map(_word, argv)),
        saved=SAVED,
        lost_peer=failure.LOST_PEER,
        max_restarts=plan.max_restarts,
        pause=LOST_NODE_SECONDS,
    )
    return "\n".join([*lines, loop])


def _word(text: str) -> str:
    """A word for bash in which SLURM's variables are replaced, and nothing else."""
    if not re.search(r"\$\{?SLURM_", text):
        return shlex.quote(text)
    return '"' + re.sub(r'(["\\`]|\$(?!\{?SLURM_\w+))', r"\\\1", text) + '"'
