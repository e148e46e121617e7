"""A run under Ray Train: metrics and checkpoints as its users expect, a worker that is killed, another number of workers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.exact import differences

OPTIONS = {
    "epochs": 12, "micro_batch_size": 8, "accumulation": 4, "threads": 1, "report": False, "tensorboard": False,
    "quiet": True, "device": "cpu",
}  # fmt: skip
SCRIPT = """
import json, sys
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
import conveyor.ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
trainer = conveyor.ray.Trainer(
    json.loads(sys.argv[1]),
    scaling_config=ScalingConfig(num_workers=(1, 2)),
    run_config=RunConfig(storage_path=sys.argv[2], name="job", failure_config=FailureConfig(max_failures=2)),
)
found = trainer.fit()
assert found.error is None
print(json.dumps({"metrics": found.metrics, "checkpoint": found.checkpoint.path, "best": len(found.best_checkpoints)}))
"""


@pytest.mark.conformance
@pytest.mark.timeout(1500)
def test_a_killed_worker_changes_nothing_under_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="Ray Train is not installed: pip install 'conveyor[ray]'")
    import conveyor

    storage = tmp_path / "storage"
    with open(tmp_path / "said", "w") as said:
        job = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(OPTIONS), str(storage)], stdout=subprocess.PIPE, stderr=said, text=True,
            env={**os.environ, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"},
        )  # fmt: skip
    try:
        run = storage / "job/run"
        until = time.monotonic() + 600
        while not list(run.glob("checkpoints/*/manifest")):
            assert job.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < until, "waited in vain"
            time.sleep(0.05)
        workers = [one for one in psutil.Process(job.pid).children(recursive=True) if _is_worker(one)]
        assert len(workers) == 2
        workers[1].kill()
        printed, _ = job.communicate(timeout=400)
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait(60)
    assert job.returncode == 0, (tmp_path / "said").read_text()
    found = json.loads(printed.splitlines()[-1])
    alone = conveyor.train(run_dir=str(tmp_path / "alone"), layout="1x1", **OPTIONS)
    assert differences(run, alone.folder) == []
    assert found["metrics"]["update"] == alone.updates
    assert found["metrics"]["validation_accuracy"] == alone.accuracy
    assert found["best"] > 1
    last = alone.folder / "checkpoints" / str(alone.updates) / "model.safetensors"
    assert (Path(found["checkpoint"]) / "model.safetensors").read_bytes() == last.read_bytes()


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "RayTrainWorker" in " ".join(process.cmdline())
    except psutil.Error:
        return False
