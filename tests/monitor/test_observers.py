"""What watchers of a run write, and that a resumed run continues it."""

import csv
import io
import json
import re
import resource
from pathlib import Path

import pytest

from conveyor.errors import UserError
from conveyor.monitor import observers
from conveyor.monitor.csvfile import CsvFile, read_last_row, read_rows
from conveyor.monitor.log_style import log_style
from conveyor.options import Options

SPEC = {"updates_total": 40, "updates_per_epoch": 10, "global_batch": 64, "updates_per_call": 5, "epochs": 4}


def record(update: int) -> dict[str, float | int | str]:
    return {
        "update": update,
        "epoch": update / 10,
        "lr": 0.1,
        "loss": 2.5 - update / 100,
        "loss_batch": 2.25,
        "accuracy": 12.5 + update,
        "accuracy_batch": 13.0,
        "images_per_second": 446.25,
        "update_seconds": 0.125,
        "seconds": update * 0.125,
    }


def validation(update: int) -> dict[str, float | int | str]:
    return {
        "name": f"checkpoint {update}",
        "update": update,
        "epoch": update / 10,
        "accuracy": 61.5,
        "loss": 1.25,
        "images": 1000,
        "seconds": 0.5,
        "images_per_second": 2000.0,
    }


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_a_resumed_run_drops_the_rows_it_will_repeat(tmp_path: Path) -> None:
    first = observers.CsvWriter(tmp_path)
    first.start(SPEC)
    for update in (5, 10, 15):
        first.log(record(update))
    first.validation(validation(10))
    first.validation({**validation(-1), "name": "average-last-2"})
    second = observers.CsvWriter(tmp_path)
    second.start(SPEC, resumed_at=10)
    second.log(record(15))
    assert [row["update"] for row in rows(tmp_path / "metrics.csv")] == ["5", "10", "15"]
    assert [row["update"] for row in rows(tmp_path / "validation.csv")] == ["10"]


def test_a_fresh_run_in_an_old_folder_starts_empty(tmp_path: Path) -> None:
    for _ in range(2):
        writer = observers.CsvWriter(tmp_path)
        writer.start(SPEC)
        writer.log(record(5))
    assert len(rows(tmp_path / "metrics.csv")) == 1


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("update,loss\n1,2.5\n2,2.4\n3,2")
    file = CsvFile(path, ("update", "loss"), "update")
    file.open(upto=10)
    assert [row["update"] for row in rows(path)] == ["1", "2"]


def test_bytes_that_are_no_text_are_no_end_of_a_run(tmp_path: Path) -> None:
    """What a machine leaves that lost its power while the file grew."""
    path = tmp_path / "x.csv"
    path.write_bytes(b"update,loss\n1,2.5\n\xff\xfe\x00\x00\n2,2.4\n")
    file = CsvFile(path, ("update", "loss"), "update")
    assert read_last_row(path) == {"update": "2", "loss": "2.4"}
    file.open(upto=10)
    assert [row["update"] for row in rows(path)] == ["1", "2"]
    path.write_bytes(b"\xff\xfe")
    file.open(upto=10)
    assert rows(path) == []


def test_a_new_key_becomes_a_column_and_survives_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    file = CsvFile(path, ("update",), "update")
    file.open()
    file.append({"update": 1})
    file.append({"update": 2, "loss_scale": 128.0})
    again = CsvFile(path, ("update",), "update")
    again.open(upto=2)
    again.append({"update": 3, "loss_scale": 64.0})
    assert [row["loss_scale"] for row in rows(path)] == ["", "128", "64"]


def test_the_last_row_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.csv"
    file = CsvFile(path, ("update", "note"), "update")
    assert read_last_row(path) == {}
    file.open()
    assert read_last_row(path) == {}
    for update in range(1, 200):
        file.append({"update": update, "note": f"a, {update}"})
        assert read_last_row(path) == read_rows(path)[-1]
    monkeypatch.setattr("conveyor.monitor.csvfile._LONGEST_ROW", 40)
    assert read_last_row(path) == read_rows(path)[-1] == {"update": "199", "note": "a, 199"}
    with path.open("a") as more:
        more.write("200,trunc")
    assert read_last_row(path)["update"] == "199"
    monkeypatch.setattr("conveyor.monitor.csvfile._LONGEST_ROW", 5)
    assert read_last_row(path) == {}


def test_bytes_that_are_no_text_cost_one_cell(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"update,loss\n1,\xff\n2,0.5\n")
    assert [row["update"] for row in read_rows(path)] == ["1", "2"]
    assert read_last_row(path) == {"update": "2", "loss": "0.5"}


def test_rows_wait_until_there_is_room(tmp_path: Path) -> None:
    """As on a full disk: files may not grow; a column that came meanwhile is in the header too."""
    file = CsvFile(tmp_path / "metrics.csv", ("update", "loss"), "update")
    file.open()
    file.append({"update": 1, "loss": 0.5})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.path.stat().st_size + 3, limits[1]))
    try:
        for update in (2, 3):
            with pytest.raises((OSError, UserError)):
                file.append({"update": update, "loss": 0.25, **({"new": 7} if update == 3 else {})})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.path.read_text() == "update,loss\n1,0.5\n"
    file.append({"update": 4, "loss": 0.125, "new": 8})
    assert file.path.read_text() == "update,loss,new\n1,0.5,\n2,0.25,\n3,0.25,7\n4,0.125,8\n"


def test_terminal_lines_and_log_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = observers.Terminal(log_file=tmp_path / "log.txt")
    terminal.start(SPEC)
    terminal.tick(5)
    terminal.log({**record(5), "loss_scale": 128.0, "skipped_updates": 2})
    terminal.validation(validation(10))
    terminal.end({"updates": 40, "seconds": 75.0, "accuracy": 61.0, "best_accuracy": 61.5, "best_update": 30})
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "update  5/40  epoch 0.50  loss 2.4500  acc 17.5 %  446 img/s  scale 128  2 skipped  4s left"
    assert out[1] == "validation  update 10  epoch 1.00  acc 61.50 %  loss 1.2500"
    assert out[2] == "done: 40 updates in 1min 15s, accuracy 61.00 % (best 61.50 % at update 30)"
    assert (tmp_path / "log.txt").read_text().splitlines() == out


def test_quiet_prints_results_only(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = observers.Terminal(quiet=True)
    terminal.start(SPEC)
    terminal.log(record(5))
    terminal.validation(validation(10))
    assert capsys.readouterr().out.startswith("validation")


def test_json_lines_hold_no_bare_nan() -> None:
    stream = io.StringIO()
    lines = observers.JsonLines(stream)
    lines.start(SPEC, resumed_at=3)
    lines.log({**record(5), "loss": float("nan")})
    start, log = (
        json.loads(line, parse_constant=lambda word: pytest.fail(word)) for line in stream.getvalue().splitlines()
    )
    assert start["resumed_at"] == 3
    assert log["event"] == "log"
    assert log["loss"] == "nan"


PATTERNS = {
    "tensorflow1": (r"throughput: *(.*?) samples\/sec,", r"accuracy: *(.*?) \%", r"loss: *(\d*\.\d*)"),
    "tensorflow2": (r"throughput: *(.*?) samples\/sec", r"accuracy: *(.*?) \%", r"loss: *(\d*\.\d*)"),
    "pytorch": (r"throughput: *(.*?) samples\/sec", r"accuracy: *(.*?) \%", r"loss: *(\d*\.\d*)"),
    "popart": (r"throughput: *(.*?) samples\/sec", r"accuracy: *(.*?) \%", r"loss: *(\d*\.\d*)"),
}


@pytest.mark.parametrize("style", PATTERNS)
def test_the_original_benchmark_patterns_find_their_numbers(style: str) -> None:
    form = log_style(style)
    assert form is not None
    form.begin(SPEC)
    text = "\n".join(form.log(record(20)))
    found = [re.findall(pattern, text) for pattern in PATTERNS[style]]
    fraction = 100 if style == "tensorflow2" else 1
    assert [len(values) for values in found] == [1, 1, 1]
    assert float(found[0][0]) == pytest.approx(446.25)
    assert float(found[1][0]) == pytest.approx(32.5 / fraction)
    assert float(found[2][0]) == pytest.approx(2.3)
    after = "\n".join(form.validation(validation(20)))
    assert float(re.findall(PATTERNS[style][1], after)[-1]) == pytest.approx(61.5 / fraction)


def test_latency_patterns() -> None:
    form = log_style("tensorflow1")
    assert form is not None
    values = {"latency_avg_ms": 1.5, "latency_p99_ms": 2.0, "latency_p999_ms": 3.0, "latency_max_ms": 4.0}
    line = form.validation({**validation(20), **values})[0]
    for name, value in (("avg", 1.5), ("99p", 2.0), ("99p9", 3.0), ("max", 4.0)):
        assert float(re.findall(rf"latency {name}: *(.*?) ms", line)[0]) == value


def test_dialect_csv_has_their_columns_and_ours(tmp_path: Path) -> None:
    writer = observers.CsvWriter(tmp_path, log_style("tensorflow1"))
    writer.start(SPEC)
    writer.log(record(10))
    writer.validation(validation(10))
    header = (tmp_path / "training.csv").read_text().splitlines()[0]
    assert (
        header
        == "step,iteration,epoch,lr,loss_batch,loss_avg,train_acc_batch,train_acc_avg,it_time,img_per_sec,total_time"
    )
    row = rows(tmp_path / "validation.csv")[0]
    assert (row["iteration"], row["val_acc"], row["update"], row["accuracy"]) == ("10", "61.5", "10", "61.5")
    assert rows(tmp_path / "metrics.csv")[0]["loss"] == "2.4"


def test_make_observers_follows_the_options(tmp_path: Path) -> None:
    def kinds(**changes: object) -> list[str]:
        return [type(watcher).__name__ for watcher in observers.make_observers(Options().replace(**changes), tmp_path)]

    assert kinds() == ["Terminal", "CsvWriter", "RunFiles", "TensorBoard"]
    assert kinds(json_logs=True, tensorboard=False) == ["Terminal", "CsvWriter", "RunFiles", "JsonLines"]
    assert kinds(wandb=True) == ["Terminal", "CsvWriter", "RunFiles", "TensorBoard", "Wandb"]


def test_numbers_and_result_of_the_run_are_files(tmp_path: Path) -> None:
    watcher = observers.RunFiles(tmp_path)
    watcher.start(SPEC)
    watcher.end({"updates": 40, "loss": float("inf")})
    assert json.loads((tmp_path / "spec.json").read_text())["global_batch"] == 64
    assert json.loads((tmp_path / "result.json").read_text()) == {"updates": 40, "loss": "inf"}
    watcher.start(SPEC, resumed_at=10)
    assert not (tmp_path / "result.json").exists()
