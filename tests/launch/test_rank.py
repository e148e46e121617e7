"""Where a process stands among workers that some launcher started."""

import json

import pytest

from conveyor.errors import UserError
from conveyor.launch.rank import detect, expand_hosts, job_port
from conveyor.world import restarts

TF_WORKERS = {"cluster": {"worker": ["worker0:3636", "worker1:3636"]}}


def test_nobody_started_this_process() -> None:
    assert detect({}) is None
    assert detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None, "the batch script is not a task of srun"
    assert detect({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}) is None


def test_torchrun() -> None:
    place = detect(
        {
            "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "2",
        }
    )  # fmt: skip
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size) == (3, 4, 1, 2)
    assert (place.address, place.port, place.launcher) == ("10.0.0.1", 29500, "torchrun")


def test_mpirun_on_one_machine_meets_on_loopback() -> None:
    environment = {
        "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job7",
    }  # fmt: skip
    place = detect(environment)
    assert place is not None
    assert (place.rank, place.size, place.address, place.port) == (1, 2, "127.0.0.1", job_port("job7"))


def test_mpirun_on_many_machines_needs_an_address() -> None:
    environment = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    with pytest.raises(UserError, match="-x MASTER_ADDR"):
        detect(environment)
    place = detect({**environment, "OMPI_MCA_orte_hnp_uri": "12.0;tcp://10.0.0.9,172.17.0.1:4711"})
    assert place is not None
    assert place.address == "10.0.0.9"
    place = detect({**environment, "MASTER_ADDR": "first", "MASTER_PORT": "1234"})
    assert place is not None
    assert (place.address, place.port) == ("first", 1234)


def test_slurm() -> None:
    environment = {
        "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_JOB_ID": "42",
        "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    }  # fmt: skip
    place = detect(environment)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size) == (5, 8, 1, 4)
    assert (place.address, place.port) == ("gpu07", job_port("42.0"))


def test_a_requeued_slurm_job_goes_on() -> None:
    environment = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0"}
    again = {**environment, "SLURM_RESTART_COUNT": "1"}
    place = detect(again)
    assert place is not None
    assert (restarts.starts(environment), restarts.starts(again), place.job) == (0, 1, "42-0")


def test_tf_config() -> None:
    place = detect({"TF_CONFIG": json.dumps({**TF_WORKERS, "task": {"type": "worker", "index": 1}})})
    assert place is not None
    assert (place.rank, place.size, place.address, place.port, place.launcher) == (1, 2, "worker0", 3636, "TF_CONFIG")
    assert (place.local_rank, place.local_size) == (0, 1)


def test_mpirun_rank_stands_in_for_a_missing_task_index() -> None:
    place = detect({"TF_CONFIG": json.dumps(TF_WORKERS), "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert place is not None
    assert (place.rank, place.port) == (1, 3636)
    with pytest.raises(UserError, match=r"task\.index"):
        detect({"TF_CONFIG": json.dumps(TF_WORKERS)})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"cluster": {}}',
        '{"cluster": {"worker": ["a"]}}',
        "[1]",
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": "x"}}',
    ],
)
def test_unreadable_tf_config_is_explained(text: str) -> None:
    with pytest.raises(UserError, match="TF_CONFIG"):
        detect({"TF_CONFIG": text})


def test_rank_beyond_the_size_is_refused() -> None:
    with pytest.raises(UserError, match="rank must be below"):
        detect({"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"})


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("a,b", ["a", "b"]),
        ("n[01-03,7]", ["n01", "n02", "n03", "n7"]),
        ("a[1-2]b[3-4],c", ["a1b3", "a1b4", "a2b3", "a2b4", "c"]),
    ],
)
def test_host_lists(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


def test_bad_host_list() -> None:
    with pytest.raises(UserError, match="01-04"):
        expand_hosts("n[x-y]")
    with pytest.raises(UserError, match="more than"):
        expand_hosts("n[1-999999999]")
