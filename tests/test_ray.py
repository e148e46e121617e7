"""A run under Ray Train: metrics and checkpoints as its users expect, a worker that is killed, a disk that is gone."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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

options, place, temporary = json.loads(sys.argv[1]), *sys.argv[2:]
# "local": without it Ray joins the cluster that /tmp/ray/ray_current_cluster names, of another job or of one that died.
here = dict(address="local", include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1", _temp_dir=temporary)
about = dict(name="job", failure_config=FailureConfig(max_failures=2))
"""
KILLED = """
ray.init(num_cpus=2, **here)
scaling = ScalingConfig(num_workers=(1, 2))
trainer = conveyor.ray.Trainer(options, scaling_config=scaling, run_config=RunConfig(storage_path=place, **about))
again = conveyor.ray.Trainer(options, scaling_config=scaling, run_config=RunConfig(storage_path=place, **about))
"""
LOST = """
from pyarrow.fs import S3FileSystem


class Lose:
    "The machine with the run folder is gone, once, after a checkpoint that Ray has."

    def on_log(self, record):
        if record["epoch"] >= 4 and not os.path.exists(place + "/lost"):
            open(place + "/lost", "w").close()
            shutil.rmtree(options["run_dir"])
            os._exit(1)


ray.init(num_cpus=1, **here)
store = S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_creation=True)
options |= {"run_dir": place + "/own", "callbacks": [Lose()]}
trainer = conveyor.ray.Trainer(
    options, scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(storage_path=os.environ["BUCKET"], storage_filesystem=store, **about),
)
"""
GROWN = """
import pathlib, threading, time
from ray._private.node import Node
from ray._private.parameter import RayParams


class Hold:
    "Alone, the worker gets as far as epoch 4 and waits: it is ended when Ray has another one."

    def on_log(self, record):
        while record["epoch"] >= 4 and ray.train.get_context().get_world_size() == 1:
            time.sleep(0.1)


def grow():
    "A machine more, once the run has a checkpoint."
    while not list(pathlib.Path(place).glob("job/run/checkpoints/*/manifest")):
        time.sleep(0.1)
    # Not by `ray start` or ray.cluster_utils: they replace the address 127.0.0.1 by one that is seen from outside.
    head = ray.get_runtime_context().gcs_address
    place_of_it = dict(gcs_address=head, node_ip_address="127.0.0.1", temp_dir=temporary, min_worker_port=0, max_worker_port=0)
    Node(RayParams(num_cpus=1, num_gpus=0, object_store_memory=150 << 20, **place_of_it), head=False, shutdown_at_exit=False)
    threading.Event().wait()  # the machine ends with the thread that started it


ray.init(num_cpus=1, **here)
scaling = ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=2)
options["callbacks"] = [Hold()]
trainer = conveyor.ray.Trainer(options, scaling_config=scaling, run_config=RunConfig(storage_path=place, **about))
threading.Thread(target=grow, daemon=True).start()
"""
TAIL = """
found = trainer.fit()
assert found.error is None
if "again" in globals():  # the same fit once more: the run has come to its end
    repeated = again.fit()
    for name in ("update", "validation_accuracy"):
        assert repeated.metrics[name] == found.metrics[name], repeated.metrics
    assert repeated.checkpoint.path == found.checkpoint.path
print(json.dumps({"metrics": found.metrics, "checkpoint": found.checkpoint.path, "best": len(found.best_checkpoints)}))
"""


@contextlib.contextmanager
def started(script: str, place: Path, **more: str) -> Iterator["subprocess.Popen[str]"]:
    """A job of Ray's; what waits for something in it waits as long as the job lives, and pytest's limit ends all."""
    pytest.importorskip("ray.train", reason="Ray Train is not installed: make conformance brings it")
    place.mkdir()
    # On a machine with many programs beside it, importing torch in two workers takes minutes.
    environment = {**os.environ, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "900", **more}
    environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # else one is written into the user's home
    temporary = tempfile.mkdtemp(prefix="ray-")  # short: paths of sockets may have 107 characters
    with open(place / "said", "w") as said:
        job = subprocess.Popen(
            [sys.executable, "-c", HEAD + script + TAIL, json.dumps(OPTIONS), str(place), temporary],
            stdout=subprocess.PIPE, stderr=said, text=True, env=environment,
        )  # fmt: skip
    try:
        yield job
    finally:
        left = psutil.Process(job.pid).children(recursive=True) if job.poll() is None else []
        if job.poll() is None:
            job.terminate()
            job.wait(60)
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        shutil.rmtree(temporary, ignore_errors=True)


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
    assert "resumed after update" in (run / "log.txt").read_text(), "nobody was killed"
    counted = json.loads((run / "result.json").read_text())
    assert counted["restarts"] == 1
    assert 0 <= counted["updates_repeated"] < expected.updates
    assert not list((place / "job").glob("starts-*")), "the next fit of this name begins to count anew"
    assert found["metrics"]["update"] == expected.updates
    assert found["metrics"]["validation_accuracy"] == expected.accuracy
    assert found["best"] > 1
    last = expected.folder / "checkpoints" / str(expected.updates) / "model.safetensors"
    assert (Path(found["checkpoint"]) / "model.safetensors").read_bytes() == last.read_bytes()


def test_a_worker_more_changes_nothing(tmp_path: Path) -> None:
    place, run = tmp_path / "ray", tmp_path / "ray/job/run"
    with started(GROWN, place) as job:
        found = result(job, place)
    expected = alone(tmp_path)
    assert differences(run, expected.folder) == []
    saved = [json.loads(one.read_text())["progress"]["layout"] for one in run.glob("checkpoints/*/state.json")]
    assert set(saved) == {"1x1", "2x1"}
    assert found["metrics"]["update"] == expected.updates
    assert found["metrics"]["validation_accuracy"] == expected.accuracy
    assert json.loads((run / "result.json").read_text())["restarts"] == 1


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
    assert json.loads((place / "own/result.json").read_text())["restarts"] == 1
