import dataclasses
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import conveyor
from conveyor.errors import UserError
from conveyor.infer import metadata
from conveyor.infer.accuracy import sample
from conveyor.infer.engines.engine import Source, open_engine, open_named
from conveyor.infer.export import Comparison, export
from conveyor.infer.load import from_options, load
from conveyor.infer.loaded import Loaded
from conveyor.infer.preprocessing import Preprocessing
from conveyor.infer.target import check_target, replacing_folder
from conveyor.options import Options

OPTIONS = Options().replace(model="resnet8", data="digits", seed=3)
IMAGES = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)


class Centred(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits - logits.mean(1, keepdim=True)


@pytest.fixture(scope="module")
def digits() -> Loaded:
    return from_options(OPTIONS, "digits")


@pytest.fixture(scope="module")
def expected(digits: Loaded) -> np.ndarray:
    return open_engine(digits, "torch", threads=1)(IMAGES)


@pytest.mark.parametrize(
    ("form", "batch"), [("onnx", None), ("onnx", 1), ("openvino", 4), ("openvino", None), ("torch", None)]
)
def test_an_export_gives_the_models_answers(
    digits: Loaded, expected: np.ndarray, tmp_path: Path, form: str, batch: int | None
) -> None:
    exported = export(digits, tmp_path / "out", form, batch=batch)
    assert exported.comparison.relative < 1e-4
    again = load(tmp_path / "out")
    assert (again.name, again.class_names, again.num_classes) == ("digits", digits.class_names, 10)
    assert again.preprocessing == digits.preprocessing
    assert again.spec["input"] == {"name": "images", "datatype": "uint8", "shape": [batch or -1, 8, 8, 1]}
    # A torch export runs on every engine, which other tests show; here the one that reads its file.
    for engine in ("torch",) if form == "torch" else again.source.engines():
        np.testing.assert_allclose(open_engine(again, engine, batch=5, threads=1)(IMAGES), expected, atol=1e-4)


@pytest.mark.parametrize("form", ["onnx", "openvino", "torch"])
def test_an_export_tells_nothing_of_the_machine(digits: Loaded, tmp_path: Path, form: str) -> None:
    export(digits, tmp_path / "out", form)
    source = str(Path(conveyor.__file__).parent).encode()
    for path in (tmp_path / "out").iterdir():
        content = [path.read_bytes()]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                content = [archive.read(name) for name in archive.namelist()]
        assert not any(source in each for each in content), path.name


def test_a_fixed_batch_is_in_the_graph(digits: Loaded, tmp_path: Path) -> None:
    import onnxruntime

    for batch in (1, 16):
        export(digits, tmp_path / str(batch), "onnx", batch=batch)
        session = onnxruntime.InferenceSession(str(tmp_path / str(batch) / "model.onnx"))
        assert session.get_inputs()[0].shape == [batch, 8, 8, 1]
        assert session.get_inputs()[0].type == "tensor(uint8)"
    newest = load(tmp_path)
    assert newest.version == "16", "a folder of numbered exports is its highest number"


def test_the_torch_export_runs_without_us(digits: Loaded, expected: np.ndarray, tmp_path: Path) -> None:
    import torch

    export(digits, tmp_path / "out", "torch")
    program = torch.export.load(str(tmp_path / "out" / "program.pt2")).module()
    np.testing.assert_allclose(program(torch.from_numpy(IMAGES)).numpy(), expected, atol=1e-4)


def test_a_wrong_export_is_not_declared_good(digits: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = from_options(OPTIONS.replace(seed=9), "other")
    stored = other.source
    wrong = open_named(Source(stored.preprocessing, graph=stored.graph), "torch", batch=5, threads=1)
    monkeypatch.setattr("conveyor.infer.export._stored", lambda *_: wrong)
    with pytest.raises(
        UserError, match=r"differs from the original .* the same answer for . of 5 images.*another --format"
    ):
        export(digits, tmp_path / "out", "onnx")
    assert os.listdir(tmp_path) == [], "nothing is left behind"


def test_a_model_that_rounding_moves_too_far_is_said_to_be_the_cause(tmp_path: Path) -> None:
    made = from_options(OPTIONS, "digits")
    assert made.module is not None
    last = [one for one in made.module.modules() if isinstance(one, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.add_(1e6)
    made = dataclasses.replace(made, module=nn.Sequential(made.module, Centred()))  # small differences of large numbers
    with pytest.raises(UserError, match=r"own answers in float32 are .* away from those in float64.*more updates"):
        export(made, tmp_path / "out", "onnx")


def test_damage_is_named(digits: Loaded, tmp_path: Path) -> None:
    export(digits, tmp_path / "out", "torch")
    file = tmp_path / "out" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        load(tmp_path / "out")
    file.unlink()
    with pytest.raises(UserError, match=r"lacks its file model\.safetensors"):
        load(tmp_path / "out")
    (tmp_path / "out" / metadata.METADATA).write_text("{")
    with pytest.raises(UserError, match=r"export\.json is damaged"):
        load(tmp_path / "out")


def test_a_path_that_leaves_the_folder_is_refused(digits: Loaded, tmp_path: Path) -> None:
    export(digits, tmp_path / "out", "torch")
    file = tmp_path / "out" / metadata.METADATA
    document = json.loads(file.read_text())
    (tmp_path / "secret").write_text("x")
    document["files"]["../secret"] = metadata.checksum(tmp_path / "secret")
    file.write_text(json.dumps(document))
    with pytest.raises(UserError, match="lacks its file"):
        load(tmp_path / "out")


class TestTarget:
    def test_rules(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "x").write_text("x")
        (tmp_path / "empty").mkdir()
        for target, reason in ((None, "--out"), (tmp_path / "file", "not a folder"), (tmp_path / "full", "not empty")):
            with pytest.raises(UserError, match=reason):
                check_target(target)
        assert check_target(tmp_path / "empty") == tmp_path / "empty"
        assert check_target(tmp_path / "new" / "deep") == tmp_path / "new" / "deep"

    def test_complete_or_absent(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError), replacing_folder(tmp_path / "out") as folder:
            (folder / "half").write_text("x")
            raise RuntimeError
        assert os.listdir(tmp_path) == []
        (tmp_path / "out").mkdir()
        with replacing_folder(tmp_path / "out") as folder:
            (folder / "whole").write_text("x")
        assert os.listdir(tmp_path / "out") == ["whole"]

    def test_what_someone_else_wrote_meanwhile_is_kept(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="filled by someone else"), replacing_folder(tmp_path / "out") as folder:
            (folder / "mine").write_text("x")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").write_text("x")
        assert os.listdir(tmp_path / "out") == ["theirs"]


def test_real_images_come_as_in_validation(digits: Loaded) -> None:
    data = sample(OPTIONS, "validation", digits.preprocessing, 50)
    assert data.images.shape == (50, 8, 8, 1)
    assert data.images.dtype == np.uint8
    assert len(set(data.labels.tolist())) == 10
    larger = sample(OPTIONS, "validation", Preprocessing(image_size=20, channels=1, in_channels=1), 3)
    assert larger.images.shape == (3, 20, 20, 1)


def test_a_checkpoint_is_loaded_with_its_averages(digits: Loaded, tmp_path: Path) -> None:
    from conveyor.checkpoint import folder
    from conveyor.checkpoint.state import State
    from conveyor.options.coerce import to_plain

    assert digits.module is not None
    weights = {name: tensor.clone() for name, tensor in digits.module.state_dict().items()}
    last = next(name for name in reversed(weights) if name.endswith("bias"))
    plain = {name: to_plain(value) for name, value in OPTIONS.flat().items()}
    state = State(
        model=weights, optimizer={}, averages={last: weights[last] + 1}, progress={"update": 7}, options=plain
    )
    (tmp_path / "my-run").mkdir()
    folder.save(tmp_path / "my-run" / "checkpoints" / "7", state)
    loaded = load(tmp_path / "my-run")
    assert (loaded.name, loaded.version, loaded.class_names[3]) == ("my-run", "7", "3")
    assert loaded.module is not None
    got = loaded.module.state_dict()[last]
    assert (got == weights[last] + 1).all()


@pytest.mark.parametrize("words", [["validate"], ["restore"], ["train", "--dry-run", "--weights"]])
def test_a_torch_export_is_no_damaged_checkpoint(
    digits: Loaded, tmp_path: Path, conveyor: Callable[..., tuple[int, str, str]], words: list[str]
) -> None:
    advised = dataclasses.replace(digits, spec={**digits.spec, "chosen": "the best is 6: --checkpoint best"})
    export(advised, tmp_path / "export", "torch")
    code, _, error = conveyor(*words, tmp_path / "export")
    assert (code, len(error.splitlines())) == (2, 1)
    assert "is an export, for conveyor predict and conveyor serve: give the run" in error
    assert "chosen" not in load(tmp_path / "export").spec, "an export has no checkpoints to choose from"


def test_a_path_with_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is nothing at"):
        load(tmp_path / "none")


def test_export_from_the_command_line(
    conveyor: Callable[..., tuple[int, str, str]], digits: Loaded, tmp_path: Path
) -> None:
    export(digits, tmp_path / "first", "torch")
    code, out, _ = conveyor(
        "export", tmp_path / "first", "--out", tmp_path / "second", "--batch", "4", "--name", "renamed"
    )
    assert code == 0
    assert "largest difference to the model" in out
    assert load(tmp_path / "second").name == "renamed"
    code, _, err = conveyor("export", tmp_path / "first", "--out", tmp_path / "second")
    assert code == 2
    assert "not empty" in err
    code, _, err = conveyor("export", tmp_path / "first", "--out", tmp_path / "third", "--batch", "many")
    assert code == 2
    assert "neither a number" in err
    code, _, err = conveyor("export", tmp_path / "second", "--out", tmp_path / "third")
    assert code == 2
    assert "already an export" in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--out", "{folder}/file/export"), "cannot write .*: not a directory"),
        (("--out", "/proc/nowhere/export"), "cannot write /proc/nowhere/export"),
        (("--out", "{folder}/new", "--batch", "²"), "neither a number"),
        (("--out", "{folder}/new", "--int8", "--check-images", "0"), "--check-images is 0; the smallest value is 1"),
        (
            ("--out", "{folder}/new", "--int8", "--calibration-images", "-3"),
            "--calibration-images is -3; the smallest value is 1",
        ),
        (("--out", "{folder}/new", "--int8", "--max-drop", "nan"), "--max-drop is not a number"),
        (("--out", "{folder}/new", "--int8", "--max-drop", "-1"), "--max-drop is -1; the smallest value is 0"),
    ],
)
def test_mistakes_of_the_command_line_are_one_sentence(
    conveyor: Callable[..., tuple[int, str, str]], tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "file").write_text("")
    export(from_options(OPTIONS, "digits"), tmp_path / "model", "torch")
    code, _, err = conveyor("export", tmp_path / "model", *(word.format(folder=tmp_path) for word in words))
    assert code == 2
    assert re.search(reason, err), err


def test_a_comparison_knows_the_scale_of_the_logits() -> None:
    """1e8 is little beside 1e12 and far too much beside 1; the answers count, ties do not, and NaN is never close."""
    expected = np.array([[1.0, 3.0, 2.0], [5.0, 1.0, 0.0]], np.float32)
    close, wrong = expected * np.float32(1 + 1e-6), expected[:, [1, 0, 2]]
    for scale in (1e-6, 1.0, 1e12):
        big = expected * np.float32(scale)
        assert Comparison.of(big, [close * np.float32(scale)]).is_good(exact=True)
        assert not Comparison.of(big, [big + np.float32(0.1 * scale)]).is_good(exact=True)
        assert not Comparison.of(big, [wrong * np.float32(scale)]).is_good(exact=False)
    found = Comparison.of(expected, [expected, wrong])
    assert (found.agreed, found.images) == (0, 2)
    tie = np.array([[2.0, 2.0, 0.0]], np.float32)
    assert Comparison.of(tie, [tie + np.array([[0.0, 1e-6, 0.0]], np.float32)]).agreed == 1
    for exact in (False, True):
        assert not Comparison.of(expected, [expected * np.float32("nan")]).is_good(exact=exact)
