"""Precisions of answers: bounds of what they change, the gate, the layers that stay in float, what is stored and said."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from tests.infer.small import small_net, small_source
from torch import nn

from conveyor.commands.validate import write_csv
from conveyor.errors import UserError
from conveyor.infer import machine, precision, quantize, validated
from conveyor.infer.accuracy import Sample
from conveyor.infer.asked_precision import AskedPrecision
from conveyor.infer.engines import auto
from conveyor.infer.engines.engine import Source, open_named
from conveyor.infer.export import export
from conveyor.infer.load import from_options, load
from conveyor.infer.loaded import Loaded
from conveyor.infer.precision import Data, Fit, fit
from conveyor.infer.preprocessing import Preprocessing
from conveyor.measure import processor
from conveyor.options import Options
from conveyor.options.coerce import checked
from conveyor.serve.engine_process import open_model

PREPROCESSING = Preprocessing(image_size=16, normalization="imagenet")
IMAGES = np.random.default_rng(0).integers(0, 256, (48, 16, 16, 3), dtype=np.uint8)
DIGITS = Options().replace(model="resnet8", data="digits", seed=3)


def small() -> tuple[Loaded, Data]:
    """A network with random weights, and its own answers as labels."""
    loaded = Loaded(small_net(), (), PREPROCESSING, {"name": "small", "num_classes": 10})
    labels = open_named(loaded.source, "torch", batch=1, threads=1)(IMAGES).argmax(1)
    return loaded, Data(Sample(IMAGES[:16], labels[:16]), Sample(IMAGES[16:], labels[16:]))


def brightest_quadrant(faintness: float, layers_before: int = 0) -> tuple[Loaded, Data]:
    """A network that names the brightest quadrant of a grey image by a margin of a few shades, and such images.

    The first layer passes each quadrant's mean on, `faintness` times as large, beside one channel with the brightness
    of the whole; the second undoes it. Exact in float32 for any faintness. `layers_before` layers hand the image on.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 80)
    images = rng.integers(90, 110, (80, 16, 16, 1)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 40
    first, second = nn.Conv2d(1, 5, 16), nn.Conv2d(5, 4, 1)
    with torch.no_grad():
        first.weight.zero_()
        first.bias.zero_()
        second.weight.zero_()
        second.bias.zero_()
        for quadrant in range(4):
            row, column = divmod(quadrant, 2)
            first.weight[quadrant, 0, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = faintness / 64
            second.weight[quadrant, quadrant] = 10 / faintness
        first.weight[4] = 1 / 256
    before = [nn.Conv2d(1, 1, 1) for _ in range(layers_before)]
    for layer in before:
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
    network = nn.Sequential(*before, first, nn.ReLU(), second, nn.Flatten())
    preprocessing = Preprocessing(image_size=16, channels=1, in_channels=1, normalization="unit")
    spec = {"name": "quadrant", "num_classes": 4, "options": {"data": "imagenet"}}
    data = Data(Sample(images[:16], labels[:16]), Sample(images[16:], labels[16:]))
    return Loaded(network, (), preprocessing, spec), data


def fastest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that put one precision first and float32 last: the gate must not depend on the machine."""
    order = [name, "int8", "bfloat16", "float32"]
    monkeypatch.setattr(
        auto, "measure", lambda engines, batch: {label: 1.0 + order.index(label.partition(" ")[0]) for label in engines}
    )


@pytest.fixture(scope="module")
def int8() -> Source:
    source = small_source(PREPROCESSING)
    return Source(PREPROCESSING, onnx=quantize.int8_file(source, IMAGES, None, 7), precision="int8")


class TestAnswers:
    """SmallNet's logits: bfloat16 has 8 bits of mantissa, int8 256 steps a tensor."""

    @pytest.mark.parametrize("engine", ["torch", "openvino", "openvino-per-core"])
    def test_bfloat16(self, engine: str) -> None:
        source = small_source(PREPROCESSING)
        half = dataclasses.replace(source, precision="bfloat16")
        assert "onnxruntime" not in half.engines()
        self.check(half, engine, source, 0.02)

    @pytest.mark.parametrize("engine", ["onnxruntime", "onnxruntime-per-core", "openvino", "openvino-per-core"])
    def test_int8(self, engine: str, int8: Source) -> None:
        assert "torch" not in int8.engines()
        self.check(int8, engine, small_source(PREPROCESSING), 0.12)

    def check(self, source: Source, engine: str, plain: Source, bound: float) -> None:
        expected = open_named(plain, "torch", batch=1, threads=1)(IMAGES)
        opened = open_named(source, engine, batch=8, threads=2)
        for answers in (opened(IMAGES), np.concatenate([opened(IMAGES[:11]), opened(IMAGES[11:])])):
            assert np.abs(answers - expected).max() <= bound * np.abs(expected).max()
        if engine == "torch" or source.precision == "int8" or processor.multiplies_bfloat16():
            assert np.abs(opened(IMAGES) - expected).max() > 1e-4, "it is not float32"

    @pytest.mark.parametrize(("of", "engine"), [("bfloat16", "onnxruntime"), ("int8", "torch")])
    def test_an_engine_that_cannot(self, of: str, engine: str, int8: Source) -> None:
        source = int8 if of == "int8" else dataclasses.replace(small_source(PREPROCESSING), precision=of)
        with pytest.raises(UserError, match=f"{engine} cannot compute in {of}: choose from .*openvino"):
            open_named(source, engine, batch=1, threads=1)


class TestGate:
    def test_a_great_loss_is_refused(self, tmp_path: Path) -> None:
        """8 bits cannot hold a loud channel and the faint ones that decide, and half of the layers is not enough."""
        loaded, data = brightest_quadrant(faintness=1e-4)
        pattern = r"float32 100\.00 %, int8 (\d+\.\d+) % .* more than the 5 points allowed"
        with pytest.raises(UserError, match=pattern):
            fit(loaded, AskedPrecision("int8", 5.0), batch=4, threads=1, data=data)

    def test_single_layers_stay_in_float_and_are_named(self, tmp_path: Path) -> None:
        loaded, data = brightest_quadrant(faintness=1e-4, layers_before=2)
        said: list[str] = []
        found = fit(loaded, AskedPrecision("int8", 0.0), batch=4, threads=1, data=data, say=said.append)
        assert set(found.measured["kept_in_float"]) == {"2", "4"}, "the two of four that cannot be quantised"
        assert found.measured["top1"] == {"float32": 100.0, "int8": 100.0}
        assert "2 of 4 layers stay in float: " in " ".join(found.notes)
        assert ["tried again with" in line for line in said] == [True, True]
        assert found.source.onnx is not None
        kinds = [node.op_type for node in onnx.load(str(found.source.onnx)).graph.node]
        assert "QuantizeLinear" in kinds, "the others are quantised"

    def test_no_loss_passes_the_strictest_gate(self) -> None:
        loaded, data = brightest_quadrant(faintness=1.0)
        found = fit(loaded, AskedPrecision("int8", 0.0), batch=4, threads=1, data=data)
        assert (found.precision, found.measured["kept_in_float"]) == ("int8", [])
        assert "int8 100.00 % (+0.00 points)" in found.notes[0]

    def test_auto_takes_the_fastest_that_passes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fastest("int8", monkeypatch)
        monkeypatch.setattr(processor, "multiplies_bfloat16", lambda: True)
        loaded, data = brightest_quadrant(faintness=1.0)
        assert fit(loaded, AskedPrecision("auto", 0.0), batch=5, threads=1, data=data).precision == "int8"
        loaded, data = brightest_quadrant(faintness=1e-4)
        found = fit(loaded, AskedPrecision("auto", 5.0), batch=5, threads=1, data=data)
        assert found.precision == "bfloat16"
        assert set(found.measured["top1"]) == {"float32", "int8", "bfloat16"}
        monkeypatch.setattr(processor, "multiplies_bfloat16", lambda: False)
        assert fit(loaded, AskedPrecision("auto", 5.0), batch=5, threads=1, data=data).precision == "float32"
        only = fit(loaded, AskedPrecision("auto", 5.0), batch=5, threads=1, data=data, engine="torch")
        assert (only.precision, only.engine) == ("float32", "torch"), "int8 has no torch"

    def test_without_images_it_is_float32_and_a_note(self) -> None:
        loaded, _ = brightest_quadrant(faintness=1.0)
        found = fit(loaded, AskedPrecision("auto"), batch=1, threads=1)
        assert found.precision == "float32"
        assert found.notes[0].startswith("note: float32 is taken: real images are needed and cannot be had: ")
        half = fit(loaded, AskedPrecision("bfloat16"), batch=1, threads=1)
        assert (half.precision, half.measured) == ("bfloat16", {})
        assert half.notes[0].startswith("note: what bfloat16 costs was not measured: ")
        with pytest.raises(UserError, match="int8 needs real images to set its ranges: "):
            fit(loaded, AskedPrecision("int8"), batch=1, threads=1)

    def test_wishes_that_cannot_be(self) -> None:
        for wanted, said in (
            (AskedPrecision("int9"), "did you mean 'int8'"),
            (AskedPrecision(max_drop=float("nan")), "--max-drop is not a number"),
            (AskedPrecision(check_images=0), "--check-images is 0; the smallest value is 1"),
            (AskedPrecision(weight_bits=6), "--weight-bits is 6; the smallest value is 7"),
        ):
            with pytest.raises(UserError, match=said):
                checked(wanted)


class TestWeights:
    @pytest.mark.parametrize(("flags", "largest"), [("avx2", 64), ("avx2 avx512f avx512_vnni", 127)])
    def test_as_many_bits_as_the_processor_sums(
        self, flags: str, largest: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processor, "processor", lambda: processor.parse([f"flags : {flags}"]))
        loaded, data = small()
        found = fit(loaded, AskedPrecision("int8", 100.0), batch=4, threads=1, data=data, engine="onnxruntime")
        assert found.source.onnx is not None
        weights = [
            numpy_helper.to_array(tensor)
            for tensor in onnx.load(str(found.source.onnx)).graph.initializer
            if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 4
        ]
        assert len(weights) == 7
        assert {int(np.abs(each.astype(int)).max()) for each in weights} == {largest}
        assert found.measured["weight_bits"] == (7 if largest == 64 else 8)

    def test_full_weights_are_refused_where_they_saturate(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded, data = small()
        wanted = AskedPrecision("int8", 100.0, weight_bits=8)
        export(loaded, tmp_path / "out", fitted=fit(loaded, wanted, batch=4, threads=1, data=data))
        monkeypatch.setattr(processor, "processor", lambda: processor.parse(["flags : avx2"]))
        with pytest.raises(UserError, match=r"saturate on this processor .* --weight-bits 7"):
            load(tmp_path / "out")


class TestStored:
    @pytest.mark.parametrize(("form", "batch"), [("onnx", None), ("openvino", 4)])
    def test_an_export_holds_its_measurement(self, tmp_path: Path, form: str, batch: int | None) -> None:
        loaded, data = small()
        found = fit(loaded, AskedPrecision("int8", 20.0), batch=4, threads=1, fixed=batch, data=data)
        exported = export(loaded, tmp_path / "out", form, batch=batch, fitted=found)
        assert exported.notes == found.notes
        assert exported.comparison.relative > 0, "8 bits are not float32"
        document = json.loads((tmp_path / "out" / "export.json").read_text())
        assert document["precision"] == "int8"
        assert document["measured"]["top1"]["float32"] == 100.0
        assert document["measured"]["top1"]["int8"] >= 80
        assert (document["measured"]["images"], document["measured"]["max_drop"]) == (32, 20.0)
        again = load(tmp_path / "out")
        served = fit(again, AskedPrecision(), batch=4, threads=1)
        assert (served.precision, served.measured) == ("int8", found.measured)
        answers = served.open(batch=4, threads=1)(data.check.images).argmax(1)
        assert 100 * (answers == data.check.labels).mean() >= 80
        with pytest.raises(UserError, match="is an int8 export, its float32 numbers are gone"):
            fit(again, AskedPrecision("float32"), batch=4, threads=1)

    def test_bfloat16_is_a_word_in_the_export(self, tmp_path: Path) -> None:
        loaded, data = small()
        found = fit(loaded, AskedPrecision("bfloat16", 20.0), batch=4, threads=1, data=data)
        export(loaded, tmp_path / "out", "onnx", fitted=found)
        assert load(tmp_path / "out").source.precision == "bfloat16"
        plain = fit(load(tmp_path / "out"), AskedPrecision("float32"), batch=4, threads=1)
        expected = open_named(loaded.source, "torch", batch=1, threads=1)(IMAGES)
        np.testing.assert_allclose(plain.open(batch=4, threads=1)(IMAGES), expected, rtol=1e-4, atol=1e-5)

    def test_torch_has_no_int8(self, tmp_path: Path) -> None:
        loaded, data = small()
        found = fit(loaded, AskedPrecision("int8", 100.0), batch=4, threads=1, data=data)
        with pytest.raises(UserError, match="--format onnx"):
            export(loaded, tmp_path / "out", "torch", fitted=found)
        assert os.listdir(tmp_path) == []

    def test_what_is_known_is_not_made_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded, data = small()
        monkeypatch.setattr(machine.OtherWork, "quiet", True)
        first = fit(loaded, AskedPrecision("int8", 100.0), batch=3, threads=1, data=data)
        for name in ("run_apart",):
            monkeypatch.setattr(quantize, name, lambda *_, **__: pytest.fail("quantised again"))
        monkeypatch.setattr(auto, "measure", lambda *_: pytest.fail("timed again"))
        monkeypatch.setattr(precision, "top1", lambda *_: pytest.fail("checked again"))
        assert fit(loaded, AskedPrecision("int8", 100.0), batch=3, threads=1, data=data).measured == first.measured


class TestQuantiser:
    def test_one_that_dies_is_one_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "model.onnx").write_bytes(b"no model")
        source = Source(PREPROCESSING, onnx=tmp_path / "model.onnx")
        with pytest.raises(UserError, match=r"could not be quantised: .*; take another --infer-precision"):
            quantize.run_apart(source, IMAGES[:1], None, out=str(tmp_path / "x"), bits=8, kept=[])

    def test_too_few_images_to_calibrate(self) -> None:
        source = small_source(PREPROCESSING)
        with pytest.raises(UserError, match=r"^calibration needs at least one batch of 64 images"):
            quantize.int8_file(source, IMAGES, 64, 8)


def test_a_server_takes_the_precision_and_hands_it_to_its_other_workers(tmp_path: Path) -> None:
    export(from_options(DIGITS, "digits"), tmp_path / "out", "torch")
    wanted = dataclasses.asdict(AskedPrecision("int8", 100.0, calibration_images=32, check_images=50))
    order = {"path": str(tmp_path / "out"), "engine": "onnxruntime", "sizes": [1, 2], "threads": 1, "wanted": wanted}
    engine, described = open_model(order)
    assert (described["precision"], described["engine"]) == ("int8", "onnxruntime")
    assert "top-1 on 50 images: float32 " in described["note"]
    other, told = open_model({**order, "fitted": json.loads(json.dumps(described["fitted"]))})
    assert told["note"] == "", "nothing was measured again"
    images = np.random.default_rng(1).integers(0, 256, (2, 8, 8, 1), dtype=np.uint8)
    np.testing.assert_array_equal(engine(images), other(images))
    assert isinstance(Fit.again(load(tmp_path / "out"), described["fitted"]).source.onnx, Path)


def test_validate_measures_what_is_served(tmp_path: Path) -> None:
    said: list[str] = []
    options = DIGITS.replace(max_validation_images=60, validation_batch_size=16)
    [record] = validated.records(options, AskedPrecision("int8", 100.0, calibration_images=32), said.append)
    assert (record["name"], record["images"]) == ("random int8", 60)
    assert any(line.startswith("top-1 on ") for line in said)
    [plain] = validated.records(options, AskedPrecision("float32"), said.append)
    assert abs(record["loss"] - plain["loss"]) < 0.1 * plain["loss"]
    assert record["loss"] != plain["loss"]
    written = write_csv(options.replace(run_dir=str(tmp_path / "new")), [record])
    assert "random int8" in written.read_text(), "into a folder that no worker has made"
