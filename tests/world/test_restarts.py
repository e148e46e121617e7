"""Whether the workers of a job were started before."""

from conveyor.world.restarts import goes_on, starts

SRUN = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}


def test_when_a_job_goes_on() -> None:
    assert not goes_on({})
    assert not goes_on({"CONVEYOR_STARTS": "0", "TORCHELASTIC_RESTART_COUNT": "0"})
    assert goes_on({"TORCHELASTIC_RESTART_COUNT": "1"})
    assert goes_on({"CONVEYOR_STARTS": "1"})
    assert goes_on({"CONVEYOR_ELASTIC": "1"})
    assert goes_on({**SRUN, "SLURM_RESTART_COUNT": "1"})


def test_how_often_it_was_started() -> None:
    assert starts({"CONVEYOR_STARTS": "2", "TORCHELASTIC_RESTART_COUNT": "1"}) == 2, "machines that joined count"
    assert starts({"CONVEYOR_STARTS": "0", "TORCHELASTIC_RESTART_COUNT": "0", "SLURM_RESTART_COUNT": "3"}) == 0
    assert starts({"SLURM_RESTART_COUNT": "1"}) == 0, "the workers of a requeued batch script are not yet started"
    assert starts({**SRUN, "SLURM_RESTART_COUNT": "3"}) == 3
    assert starts({"CONVEYOR_ELASTIC": "1"}) == 0
