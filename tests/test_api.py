"""The Python face: typed options, the run as an object, own modules that load again, callbacks."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.test_user_data import arrays, net
from tests.run.runs import small_options

import conveyor
from conveyor.errors import UserError
from conveyor.infer.predict import Prediction
from conveyor.options import specs
from conveyor.options.typed import TrainOptions

COMMON: dict[str, Any] = small_options(updates=6, updates_per_epoch=3).changed()
OWN = {name: value for name, value in COMMON.items() if name != "model"}
Command = Callable[..., tuple[int, str, str]]


def test_typed_options_are_those_that_are_declared(tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "scripts" / "typed_options.py"
    code = (
        f"import pathlib, runpy; made = runpy.run_path({str(script)!r})\n"
        f"for kind in made['TARGETS']: pathlib.Path({str(tmp_path)!r}, kind + '.py').write_text(made['text'](kind))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", "--line-length", "120", str(tmp_path)], check=True)
    for kind, name in {"data": "typed_data.py", "all": "typed.py"}.items():
        assert (tmp_path / f"{kind}.py").read_text() == (
            script.parent.parent / "src/conveyor/options" / name
        ).read_text(), "run scripts/typed_options.py and ruff format"
    assert set(TrainOptions.__annotations__) == set(specs()) - {"model", "data"}


def test_the_run_as_an_object(tmp_path: Path) -> None:
    run = conveyor.train(run_dir=tmp_path / "run", **COMMON)
    assert run.options.model.model == "resnet8"
    assert [row["update"] for row in run.metrics] == [3, 6]
    assert run.validation == run.validations
    assert run.best is not None
    assert run.report().read_text().startswith("<!")
    shown = run._repr_html_()
    assert shown.count("<svg") >= 2
    assert "<script" not in shown
    pytest.importorskip("matplotlib")
    assert len(run.plot().axes) == 2
    assert run.plot()._repr_png_().startswith(b"\x89PNG"), "what a notebook shows"
    again = conveyor.Run.open(tmp_path / "run")
    assert again.best_accuracy == run.best_accuracy
    assert again.updates == 6
    images = np.zeros((8, 8), np.uint8)
    one, other = run.model.predict(images), conveyor.load(again, "best").predict(images)
    assert isinstance(one, Prediction)
    assert isinstance(other, Prediction)
    assert one.ranked == other.ranked


def test_own_modules_load_again(tmp_path: Path) -> None:
    run = conveyor.train(model=net(), data=(arrays(64), arrays(20)), run_dir=tmp_path / "run", **{**OWN, "updates": 30})
    bright = np.full((8, 8, 1), 230, np.uint8)
    found = run.model.predict(bright)
    assert isinstance(found, Prediction)
    with pytest.raises(UserError, match=r"conveyor.load\(path, model=net\)"):
        conveyor.load(tmp_path / "run")
    fresh = net()
    model = conveyor.load(tmp_path / "run", "best", model=fresh)
    assert model.net is fresh
    again = model.predict(bright)
    assert isinstance(again, Prediction)
    # The module that was trained keeps the memory format of training.
    assert again.probabilities == pytest.approx(found.probabilities, rel=1e-5)
    with pytest.raises(UserError, match="do not fit the model Linear"):
        conveyor.load(tmp_path / "run", model=torch.nn.Linear(2, 2))


class Watching:
    """Writes down what it hears; draws random numbers, and asks for the end at an update."""

    def __init__(self, until: int = 1 << 30) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.until = until

    def on_log(self, record: dict[str, Any]) -> bool:
        torch.manual_seed(int(torch.rand(1) * 1000))
        self.heard.append(("log", record["update"]))
        record.clear()
        return len(self.heard) > 0 and self.heard[-1][1] >= self.until

    def on_validation(self, record: dict[str, Any]) -> None:
        self.heard.append(("validation", record["update"]))

    def on_checkpoint(self, path: Path) -> None:
        self.heard.append(("checkpoint", (path.name, (path / "model.safetensors").exists())))

    def on_end(self, record: dict[str, Any]) -> None:
        self.heard.append(("end", record["reason"]))


def test_callbacks_hear_everything_and_change_nothing(tmp_path: Path) -> None:
    watching = Watching()
    plain = conveyor.train(run_dir=tmp_path / "plain", **COMMON)
    watched = conveyor.train(run_dir=tmp_path / "watched", callbacks=[watching], **COMMON)
    for update in (3, 6):
        one, other = (run.folder / "checkpoints" / str(update) / "model.safetensors" for run in (plain, watched))
        assert one.read_bytes() == other.read_bytes()
    assert [row["loss"] for row in watched.metrics] == [row["loss"] for row in plain.metrics]
    assert [what for kind, what in watching.heard if kind in ("log", "validation")] == [3, 3, 6, 6]
    assert [what for kind, what in watching.heard if kind == "checkpoint"] == [("3", True), ("6", True)]
    assert watching.heard[-1] == ("end", "done")


def test_a_callback_may_end_the_run(tmp_path: Path) -> None:
    watching = Watching(until=3)
    run = conveyor.train(run_dir=tmp_path / "run", callbacks=[watching], **{**COMMON, "updates": 60})
    assert (run.reason, run.updates) == ("stopped by a callback", 4)
    assert (run.folder / "checkpoints" / "4").exists()
    assert watching.heard[-1] == ("end", "stopped by a callback")


def test_a_second_thread_that_trains_is_refused(tmp_path: Path) -> None:
    """PyTorch's random generator, from which weights are drawn, is one for all threads."""
    refused: list[str] = []

    class Training:
        def on_log(self, record: dict[str, Any]) -> None:
            def second() -> None:
                with pytest.raises(conveyor.UserError, match="another thread of this process is training") as error:
                    conveyor.train(run_dir=tmp_path / "second", **COMMON)
                refused.append(str(error.value))

            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    conveyor.train(run_dir=tmp_path / "first", callbacks=[Training()], **COMMON)
    assert len(refused) == 2
    assert conveyor.train(run_dir=tmp_path / "third", **COMMON).updates == 6


def test_a_callback_that_fails_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        calls = 0

        def on_log(self, record: dict[str, Any]) -> None:
            Failing.calls += 1
            raise RuntimeError("no")

    with caplog.at_level(logging.ERROR):
        run = conveyor.train(run_dir=tmp_path / "run", callbacks=[Failing()], **COMMON)
    assert run.updates == 6
    assert Failing.calls == 1
    assert "Failing.on_log failed (RuntimeError: no)" in caplog.text
    with pytest.raises(UserError, match="int is no callback"):
        conveyor.train(run_dir=tmp_path / "none", callbacks=[3], **COMMON)


def test_what_is_no_data_no_model_and_no_path_is_one_sentence(tmp_path: Path) -> None:
    images, labels = arrays(16)
    lists = (images.tolist(), labels.tolist())
    with pytest.raises(UserError, match=r"has no samples .* labels\) as arrays"):
        conveyor.train(data=(lists, lists), run_dir=tmp_path / "lists", **COMMON)
    with pytest.raises(UserError, match=r"the model cannot take images of shape \[1, 1, 8, 8\] \(mat1"):
        conveyor.train(model=torch.nn.Linear(5, 5), data=(arrays(16), arrays(8)), run_dir=tmp_path / "model", **OWN)
    with pytest.raises(UserError, match="path should be a folder, a file or a Run, not NoneType"):
        conveyor.load(None)  # type: ignore[arg-type]


def test_a_callback_from_the_shell(tmp_path: Path, conveyor: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVEYOR_MODELS", "")
    (tmp_path / "mine.py").write_text(
        "class Told:\n"
        "    def on_log(self, record):\n"
        f"        open({str(tmp_path / 'told.txt')!r}, 'a').write(str(record['update']) + ' ')\n"
    )
    words = ["--model", "resnet8", "--micro-batch-size", 8, "--updates-per-epoch", 3, "--run-dir", tmp_path / "run"]
    words += ["--max-validation-images", 10, "--layout", "2x1", "--accumulation", 2, "--no-report"]
    command = [
        sys.executable,
        "-m",
        "conveyor",
        "train",
        *words,
        "--updates",
        6,
        "--callback",
        f"{tmp_path}/mine.py:Told",
    ]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "told.txt").read_text() == "3 6 "
    monkeypatch.setenv("CONVEYOR_MODELS", "")
    code, out, err = conveyor("restore", tmp_path / "run", "--updates", 9, "--layout", "1x1")
    assert code == 0, err
    assert "is not called: give it again if you trust it" in out
    assert (tmp_path / "told.txt").read_text() == "3 6 "
    assert json.loads((tmp_path / "run" / "result.json").read_text())["updates"] == 9
