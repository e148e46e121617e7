"""A run under Ray Train: metrics and checkpoints as its users expect, a worker that is killed, a machine that comes, a disk that goes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.exact import differences
from tests.remote.conftest import bucket, server  # noqa: F401 - fixtures

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(2400), pytest.mark.xdist_group("ray")]
OPTIONS = {
    "epochs": 12, "micro_batch_size": 8, "accumulation": 4, "threads": 1, "report": False, "tensorboard": False,
    "quiet": True, "device": "cpu",
}  # fmt: skip
HEAD = """
import json, os, shutil, sys
import ray, ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
import conveyor.ray

options, place = json.loads(sys.argv[1]), sys.argv[2]
about = dict(name="job", failure_config=FailureConfig(max_failures=2))
"""
KILLED = """
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
scaling = ScalingConfig(num_workers=(1, 2))
trainer = conveyor.ray.Trainer(options, scaling_config=scaling, run_config=RunConfig(storage_path=place, **about))
"""
GROWING = """
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
ray.init(address=cluster.address, log_to_driver=False)


class Come:
    def on_checkpoint(self, path):
        if not os.path.exists(place + "/come"):
            open(place + "/come", "w").close()


def come():
    import threading, time

    while not os.path.exists(place + "/come"):
        time.sleep(0.2)
    cluster.add_node(num_cpus=1)


import threading
threading.Thread(target=come, daemon=True).start()
scaling = ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=1)
options["callbacks"] = [Come()]
trainer = conveyor.ray.Trainer(options, scaling_config=scaling, run_config=RunConfig(storage_path=place, **about))
"""
LOST = """
from pyarrow.fs import S3FileSystem


class Lose:
    "The machine with the run folder is gone, once, after a checkpoint that Ray has."

    def on_log(self, record):
        if ray.train.get_checkpoint() is None and record["epoch"] >= 4:
            shutil.rmtree(options["run_dir"])
            os._exit(1)


ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
store = S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_creation=True)
options |= {"run_dir": place + "/own", "callbacks": [Lose()]}
trainer = conveyor.ray.Trainer(
    options, scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(storage_path=os.environ["BUCKET"], storage_filesystem=store, **about),
)
"""
TAIL = """
found = trainer.fit()
assert found.error is None
print(json.dumps({"metrics": found.metrics, "checkpoint": found.checkpoint.path, "best": len(found.best_checkpoints)}))
"""


@contextmanager
def started(script: str, place: Path, **more: str) -> Iterator["subprocess.Popen[str]"]:
    """A job of Ray's; what waits for something in it waits as long as the job lives, and pytest's limit ends all."""
    pytest.importorskip("ray.train", reason="Ray Train is not installed: make conformance brings it")
    place.mkdir()
    # On a machine with many programs beside it, importing torch in two workers takes minutes.
    environment = {**os.environ, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "900", **more}
    with open(place / "said", "w") as said:
        job = subprocess.Popen(
            [sys.executable, "-c", HEAD + script + TAIL, json.dumps(OPTIONS), str(place)],
            stdout=subprocess.PIPE, stderr=said, text=True, env=environment,
        )  # fmt: skip
    try:
        yield job
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait(60)


def until(done: Callable[[], Any], job: "subprocess.Popen[str]", place: Path) -> None:
    while not done():
        assert job.poll() is None, (place / "said").read_text()
        time.sleep(0.05)


def result(job: "subprocess.Popen[str]", place: Path) -> dict[str, Any]:
    printed, _ = job.communicate()
    assert job.returncode == 0, (place / "said").read_text()
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def alone(place: Path) -> Any:
    import conveyor

    return conveyor.train(run_dir=str(place / "alone"), layout="1x1", **OPTIONS)


def workers(job: "subprocess.Popen[str]") -> list[psutil.Process]:
    found = []
    for one in psutil.Process(job.pid).children(recursive=True):
        try:
            found += [one] if "RayTrainWorker" in " ".join(one.cmdline()) else []
        except psutil.Error:
            continue
    return found


def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    place, run = tmp_path / "ray", tmp_path / "ray/job/run"
    with started(KILLED, place) as job:
        until(lambda: list(run.glob("checkpoints/*/manifest")), job, place)
        assert len(workers(job)) == 2
        workers(job)[1].kill()
        found = result(job, place)
    expected = alone(tmp_path)
    assert differences(run, expected.folder) == []
    assert json.loads((run / "result.json").read_text())["restarts"] >= 1
    assert found["metrics"]["update"] == expected.updates
    assert found["metrics"]["validation_accuracy"] == expected.accuracy
    assert found["best"] > 1
    last = expected.folder / "checkpoints" / str(expected.updates) / "model.safetensors"
    assert (Path(found["checkpoint"]) / "model.safetensors").read_bytes() == last.read_bytes()


def test_a_job_grows_when_a_machine_comes(tmp_path: Path) -> None:
    place, run = tmp_path / "ray", tmp_path / "ray/job/run"
    with started(GROWING, place) as job:
        result(job, place)
    expected = alone(tmp_path)
    assert differences(run, expected.folder) == []
    layouts = [json.loads(path.read_text())["progress"]["layout"] for path in run.glob("checkpoints/*/state.json")]
    assert {"1x1", "2x1"} == set(layouts)


def test_a_run_folder_that_is_gone_is_made_anew_from_what_ray_kept(tmp_path: Path, bucket: str) -> None:  # noqa: F811
    place = tmp_path / "ray"
    with started(LOST, place, BUCKET=bucket.removeprefix("s3://")) as job:
        found = result(job, place)
    expected = alone(tmp_path)
    assert found["metrics"]["update"] == expected.updates
    assert found["metrics"]["validation_accuracy"] == expected.accuracy
    saved = [
        folder / "checkpoints" / str(expected.updates) / "model.safetensors"
        for folder in (place / "own", expected.folder)
    ]
    assert saved[0].read_bytes() == saved[1].read_bytes()
    rows = [(folder / "metrics.csv").read_text().count("\n") for folder in (place / "own", expected.folder)]
    assert rows[0] < rows[1], "nothing was lost"
