"""Runs and data on a store give the same files as on a disk; every command takes an address."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.exact import differences

import conveyor
from conveyor.cli import main
from conveyor.remote import is_address
from conveyor.remote.store import Store

RUN = ["--model=resnet8", "--data=digits", "--layout=1x1", "--threads=1", "--micro-batch-size=16", "--updates-per-epoch=10",
       "--updates-per-log=5", "--validation", "--no-tensorboard", "--quiet"]  # fmt: skip


def on(machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / machine))


def fetched(address: str, folder: Path) -> Path:
    store = Store(address)
    store.download(list(store.versions()), folder)
    return folder


def test_what_is_an_address() -> None:
    assert all(map(is_address, ("s3://bucket/run", "gs://b", "memory://x")))
    assert not any(
        map(
            is_address,
            ("runs/one", "/abs", "http://localhost:8000", "https://x", "C:\\runs", "s3://", "s3:///", None, 3),
        )
    )


def test_a_store_without_buckets_has_its_folders_made_and_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fsspec", reason="the extra `remote` brings it")
    on("here", tmp_path, monkeypatch)
    address = f"file://{tmp_path}/new/runs/one"
    assert main(["train", *RUN, "--epochs=1", f"--run-dir={address}"]) == 0
    assert (tmp_path / "new/runs/one/checkpoints/10/manifest").exists()
    assert main(["report", address]) == 0
    capsys.readouterr()
    for command in (["export", f"{address}s", f"--out={tmp_path}/out"], ["report", f"{address}s"]):
        assert main(command) == 2
        assert f"there is nothing at {address}s" in capsys.readouterr().err.replace("\n  ", "")


def test_a_run_that_moves_to_another_machine_ends_in_equal_files(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address, alone = f"{bucket}/runs/moving", str(tmp_path / "alone")
    for place in (address, alone):
        on("first", tmp_path, monkeypatch)
        assert main(["train", *RUN, "--epochs=3", f"--run-dir={place}", "--max-time=0s"]) == 0
        on("second", tmp_path, monkeypatch)
        assert main(["restore", place, "--max-time=1h"]) == 0
    assert differences(fetched(address, tmp_path / "whole"), Path(alone)) == []
    told = capsys.readouterr().out
    # What is told to be typed next is typed on any machine.
    for line in (f"go on with conveyor restore {address}", f"run folder: {address}"):
        assert line in told.replace("\n  ", " ")
    assert main(["train", *RUN, f"--run-dir={address}"]) == 2
    assert f"{address} already holds a run" in capsys.readouterr().err.replace("\n  ", " ")
    assert main(["validate", address, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {record["name"] for record in records} == {"1", "10", "20", "30"}
    assert main(["report", address]) == 0
    photo = tmp_path / "photo.png"
    Image.fromarray(np.full((8, 8), 99, np.uint8)).save(photo)
    assert main(["predict", address, str(photo), "--json"]) == 0
    assert main(["predict", f"{address}/checkpoints/10", str(photo), "--json"]) == 0
    assert conveyor.load(address).predict(photo).label == conveyor.load(alone).predict(photo).label
    assert main(["validate", f"{bucket}/nothing"]) == 2


@pytest.mark.conformance
@pytest.mark.timeout(600)
def test_a_killed_run_goes_on_from_the_store(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"{bucket}/killed"
    same = [*RUN, "--epochs=5", "--accumulation=2", "--updates-per-checkpoint=5"]
    often = "import sys; from conveyor import cli; from conveyor.remote import mirror; mirror.INTERVAL = 0.2; sys.exit(cli.main())"
    command = [sys.executable, "-c", often, "train", *same, "--layout=2x1", f"--run-dir={address}"]
    job = subprocess.Popen(
        command, env={**os.environ, "CONVEYOR_CACHE": str(tmp_path / "dead")}, start_new_session=True
    )
    store, deadline = Store(address), time.monotonic() + 240
    while sum(name.endswith("/manifest") for name in store.versions()) < 2:
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait(30)
    on("new", tmp_path, monkeypatch)
    assert main(["restore", address, "--layout=1x1"]) == 0
    alone = tmp_path / "alone"
    assert main(["train", *same, f"--run-dir={alone}"]) == 0
    assert differences(fetched(address, tmp_path / "there"), alone) == []


def test_data_on_a_store(bucket: str, tmp_path: Path) -> None:
    store = Store(f"{bucket}/photos")
    for index in range(24):
        file = tmp_path / f"{index}.png"
        Image.fromarray(np.full((40, 40, 3), 10 * index, np.uint8)).save(file)
        store.upload(f"{'dark' if index < 12 else 'light'}/{index}.png", file)
    options = {
        "model": "resnet8",
        "image_size": 32,
        "micro_batch_size": 4,
        "updates": 3,
        "layout": "1x1",
        "quiet": True,
    }
    run = conveyor.train(data_dir=f"{bucket}/photos", run_dir=str(tmp_path / "run"), **options)
    assert run.options.data.data_dir == f"{bucket}/photos", "any machine finds them"
    local = fetched(f"{bucket}/photos", tmp_path / "photos")
    same = conveyor.train(data_dir=str(local), run_dir=str(tmp_path / "same"), **options)
    assert differences(run.folder, same.folder, frozenset({"data"})) == []
    with pytest.raises(conveyor.UserError, match="there are no data at"):
        conveyor.train(data_dir=f"{bucket}/other", run_dir=str(tmp_path / "none"), **options)


def test_a_store_that_cannot_be_written_is_refused_before_the_run(
    bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *RUN, "--run-dir=s3://there-is-no-such-bucket/run"]) == 2
    assert "there is no such bucket" in capsys.readouterr().err
