"""Whether the workers of a job were started before, from the launcher's environment variables (no torch here)."""

import os
from collections.abc import Mapping


class StartedAgain(Exception):  # noqa: N818 - nothing went wrong
    """This worker ends because its launcher is going to start the job's workers again; the state is handed over."""


def starts(environment: Mapping[str, str] = os.environ) -> int:
    """How often the workers of this job were started again: by our launcher, by torchrun, or by SLURM's requeueing.

    Our launcher's count comes first: torchrun does not count a start because of a machine that joins.
    """
    names = ["CONVEYOR_STARTS", "TORCHELASTIC_RESTART_COUNT"]
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "")
    if tasks.isdigit() and int(tasks) > 1:
        names.append("SLURM_RESTART_COUNT")
    text = next((environment[name] for name in names if environment.get(name)), "0")
    return int(text) if text.isdigit() else 0


def goes_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether these workers continue an earlier start of the job: after a death, or when machines may come and go."""
    return starts(environment) > 0 or environment.get("CONVEYOR_ELASTIC") == "1"


def job(environment: Mapping[str, str] = os.environ) -> str:
    """What our launcher calls the job on all machines, however often it starts its workers; else empty."""
    return environment.get("CONVEYOR_JOB", "")
