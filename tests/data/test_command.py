"""`conveyor data` from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.data.photos import encoded, make_folder, picture
from tests.data.small import make_mnist

from conveyor.bench.records import load_record

Run = Callable[..., tuple[int, str, str]]


def test_list(conveyor: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_mnist(tmp_path / "mnist")
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path))
    code, out, _ = conveyor("data", "list")
    assert code == 0
    assert str(tmp_path / "mnist") in out
    assert "not here: `conveyor data get NAME`" in out
    code, out, _ = conveyor("data", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["digits"]["where"] == "embedded"
    assert rows["cifar100"]["where"] is None
    assert rows["imagenet"]["train_images"] == 1_281_167


def test_counts_are_above_zero(conveyor: Run) -> None:
    code, _, error = conveyor("data", "bench", "--batches", "-3")
    assert (code, "should be a whole number above 0" in error) == (2, True)


def test_get(conveyor: Run, tmp_path: Path) -> None:
    make_mnist(tmp_path / "MNIST" / "raw")
    assert conveyor("data", "get", "mnist", "--data-dir", str(tmp_path))[:2] == (
        0,
        f"mnist is here: {tmp_path / 'MNIST' / 'raw'}\n",
    )
    assert conveyor("data", "get", "digits")[0] == 0
    code, _, error = conveyor("data", "get", "imagenet")
    assert code == 2
    assert "cannot be fetched" in error
    code, _, error = conveyor("data", "get", "cifra10")
    assert code == 2
    assert "did you mean 'cifar10'" in error


def test_get_without_a_network(conveyor: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.data.formats.download.ATTEMPTS", 1)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    code, _, error = conveyor("data", "get", "cifar10", "--data-dir", str(tmp_path), "--mirror", "http://127.0.0.1:1")
    assert code == 2
    assert "http://127.0.0.1:1/cifar-10-binary.tar.gz" in error
    assert "--mirror" in error
    assert [path.name for path in tmp_path.iterdir()] == [".cifar10.lock"]


def test_a_single_class_is_not_in_order(conveyor: Run, tmp_path: Path) -> None:
    make_folder(tmp_path, 2, 1, classes=("ape",))
    code, out, error = conveyor("data", "verify", tmp_path)
    assert (code, "ape is its only class" in out + error) == (1, True)


def test_build_and_verify(conveyor: Run, tmp_path: Path) -> None:
    make_folder(tmp_path / "images")
    source, target = str(tmp_path / "images"), str(tmp_path / "records")
    code, out, _ = conveyor(
        "data", "build-tfrecords", source, target, "--train-shards", "3", "--validation-shards", "2"
    )
    assert code == 0
    assert "12 images for training, 6 for validation" in out
    assert (tmp_path / "records" / "train-00002-of-00003").is_file()
    code, out, _ = conveyor("data", "verify", target)
    assert code == 0
    assert "everything is in order" in out
    assert "12 images for train, 6 images for validation" in out
    code, out, _ = conveyor("data", "verify", str(tmp_path / "images" / "train"))
    assert "12 files" in out
    assert "validation" not in out, "class folders are split when a run starts, by --hold-out"
    (tmp_path / "images" / "train" / "ape" / "0.JPEG").write_bytes(b"x")
    code, out, _ = conveyor("data", "verify", source)
    assert code == 1
    assert out.splitlines()[-1] == "1 problem"
    assert "bad: " in out
    assert "ape/0.JPEG" in out
    code, out, _ = conveyor("data", "verify", source, "--json")
    assert code == 1
    assert len(json.loads(out)["problems"]) == 1
    assert conveyor("data", "verify", str(tmp_path / "nothing"))[0] == 2
    assert conveyor("data", "build-tfrecords", source, target, "--threads", "0")[0] == 2
    assert conveyor("data", "build-tfrecords", source, target, "--class-texts", "missing.txt")[0] == 2


def test_bench(conveyor: Run, tmp_path: Path) -> None:
    code, out, _ = conveyor("data", "bench", "--batches", "2", "--micro-batch-size", "16")
    assert code == 0
    assert "bound: one cached batch" in out
    make_folder(tmp_path / "images")
    words = ("--data-dir", str(tmp_path / "images"), "--image-size", "24", "--micro-batch-size", "4", "--batches", "2")
    code, out, _ = conveyor("data", "bench", *words, "--json")
    found = json.loads(out)
    assert found["feed"]["images"] == 8
    assert found["stages"]["decode"] > 0
    assert found["whole"]["images_per_second"] > 0


def test_bench_against_peers(conveyor: Run, tmp_path: Path) -> None:
    for i in range(8):
        (tmp_path / f"{i}.jpg").write_bytes(encoded(picture(40, 50, i)))
    words = (
        "data",
        "bench",
        "--peers",
        "--threads",
        "1",
        "--rounds",
        "1",
        "--image-size",
        "16",
        "--micro-batch-size",
        "4",
    )
    code, out, _ = conveyor(*words, "--data-dir", str(tmp_path), "--json", "--out", str(tmp_path / "records"))
    assert code == 0
    found = json.loads(out)
    assert {"conveyor rate", "DataLoader + Pillow rate"} <= found["results"].keys()
    assert found["conditions"]["files"] == 8
    record = load_record(next((tmp_path / "records").glob("data-photographs-16px-*.json")))
    assert record.results["conveyor rate"].median > 0
    assert record.results["ratio to DataLoader + Pillow"].n == 1
    assert conveyor(*words)[0] == 2
    assert conveyor(*words, "--data-dir", str(tmp_path / "nowhere"))[0] == 2
