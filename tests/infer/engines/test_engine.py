import dataclasses
import functools
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.infer.small import small_net, small_source

from conveyor.errors import UserError
from conveyor.infer import machine, throughput
from conveyor.infer.engines import auto
from conveyor.infer.engines.engine import Engine, Source, in_batches, open_engine
from conveyor.infer.engines.replicas import Replicas, core_groups
from conveyor.infer.engines.torch_engine import TorchEngine
from conveyor.infer.preprocessing import Preprocessing
from conveyor.infer.throughput import Repeat

PREPROCESSING = Preprocessing(image_size=16, normalization="imagenet")
IMAGES = np.random.default_rng(1).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def source() -> Source:
    return small_source(PREPROCESSING)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    x = torch.from_numpy(IMAGES).permute(0, 3, 1, 2) / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.inference_mode():
        return small_net()((x - mean.view(3, 1, 1)) / std.view(3, 1, 1)).numpy()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["torch", "onnxruntime", "onnxruntime-per-core", "openvino", "openvino-per-core"])
def test_every_engine_gives_the_models_own_answer(
    name: str, threads: int, source: Source, expected: np.ndarray
) -> None:
    engine = open_engine(source, name, batch=5, threads=threads)
    np.testing.assert_allclose(engine(IMAGES), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(engine(IMAGES[1:4]), expected[1:4], rtol=1e-4, atol=1e-5, err_msg="another batch size")
    read_only = IMAGES[:2].copy()
    read_only.flags.writeable = False
    np.testing.assert_allclose(engine(read_only), expected[:2], rtol=1e-4, atol=1e-5)
    kept = engine(IMAGES[:1])
    engine(IMAGES[1:2])
    np.testing.assert_allclose(kept, expected[:1], rtol=1e-4, atol=1e-5, err_msg="a later call overwrote an answer")
    engine.close()


def test_images_of_their_own_are_for_models_that_take_any_number(source: Source) -> None:
    assert "onnxruntime-per-core" in source.engines()
    fixed = dataclasses.replace(source, batch=4)
    assert "onnxruntime-per-core" not in fixed.engines()
    with pytest.raises(UserError, match=r"takes one image at a time, this model takes 4: choose from torch, onnx"):
        open_engine(fixed, "onnxruntime-per-core")


def test_wrong_images_are_refused(source: Source) -> None:
    engine = open_engine(source, "torch", threads=1)
    for wrong in (IMAGES.astype(np.float32), IMAGES[0], IMAGES[:, :8]):
        with pytest.raises(ValueError, match="images must be uint8 of shape Nx16x16x3"):
            engine(wrong)


def test_unknown_engine_names_the_nearest(source: Source) -> None:
    with pytest.raises(UserError, match="did you mean 'openvino'"):
        open_engine(source, "openvin")


def test_fixed_batch_is_cut_and_padded() -> None:
    seen: list[int] = []

    def run(images: np.ndarray) -> np.ndarray:
        seen.append(len(images))
        return images.reshape(len(images), -1)[:, :2].astype(np.float32)

    np.testing.assert_array_equal(in_batches(run, IMAGES, 2), run(IMAGES))
    assert seen == [2, 2, 2, 5]


class TestAuto:
    def test_a_quiet_choice_is_remembered(
        self, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(machine.OtherWork, "quiet", True)
        cache = tmp_path / "engines.json"
        first = auto.choose(source, batch=2, threads=1, cache=cache)
        assert first.engine == min(first.milliseconds, key=first.milliseconds.__getitem__)
        assert (
            set(first.milliseconds)
            == {*source.engines()}
            >= {"torch", "onnxruntime", "onnxruntime-per-core", "openvino"}
        )
        monkeypatch.setattr(auto, "measure", lambda *_: pytest.fail("measured again"))
        again = auto.choose(source, batch=2, threads=1, cache=cache)
        assert (again.engine, again.remembered) == (first.engine, True)
        assert "measured before" in again.text()

    def test_a_choice_under_load_is_used_but_not_remembered(
        self, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(machine.OtherWork, "quiet", False)
        monkeypatch.setattr(auto, "measure", lambda engines, batch: dict.fromkeys(engines, 2.0) | {"torch": 1.0})
        choice = auto.choose(source, batch=2, threads=1, cache=tmp_path / "engines.json")
        assert choice.engine == "torch"
        assert "measured under load" in choice.text()
        assert not (tmp_path / "engines.json").exists()

    def test_the_only_one_and_the_one_asked_for_are_told_apart(self, source: Source) -> None:
        assert "torch for batch 2 on 1 core: as asked" in auto.choose(source, batch=2, threads=1, engine="torch").text()
        only = auto.Choice("torch", {}, batch=2, threads=1, quiet=True)
        assert "the only one that can run this model here" in only.text()

    def test_one_that_cannot_run_a_model_says_why(self, source: Source) -> None:
        """And not that nothing is installed."""
        with pytest.raises(UserError, match="the engine torch cannot compute in int8: choose from"):
            auto.choose(dataclasses.replace(source, precision="int8"), batch=2, threads=1, engine="torch")
        if "openvino-per-core" in source.engines():
            with pytest.raises(UserError, match="a batch has one image: take openvino"):
                auto.choose(source, batch=1, threads=1, engine="openvino-per-core")

    def test_a_damaged_cache_is_ignored(self, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = tmp_path / "engines.json"
        cache.write_text("{nonsense")
        monkeypatch.setattr(machine.OtherWork, "quiet", True)
        monkeypatch.setattr(auto, "measure", lambda engines, batch: dict.fromkeys(engines, 2.0) | {"openvino": 1.0})
        assert auto.choose(source, batch=3, threads=1, cache=cache).engine == "openvino"
        assert len(json.loads(cache.read_text())) == 1

    def test_who_is_far_behind_is_not_run_again(self) -> None:
        assert auto.close_candidates({"a": [1.0, 3.0], "b": [1.2, 9.0], "c": [2.0, 1.3]}) == ["a", "b"]
        runs = dict.fromkeys(("first", "second", "slow"), 0)

        class Paced:
            image_shape = (1, 1, 1)

            def __init__(self, name: str, seconds: float) -> None:
                self.name, self.seconds = name, seconds

            def __call__(self, images: np.ndarray) -> None:
                runs[self.name] += 1
                time.sleep(self.seconds)

        engines = {name: Paced(name, 0.1 if name == "slow" else 0.01) for name in runs}
        times = auto.measure(engines, 1, seconds=1.0)  # type: ignore[arg-type]
        assert max(times, key=times.__getitem__) == "slow"
        assert runs["slow"] == 3, "one run to warm up and two that count"
        assert runs["first"] > 3

    def test_an_engine_is_judged_by_batches_in_a_row(self) -> None:
        """Threads that sleep after a rest of 60 ms take long over the first batch, and only then."""

        class Sleepy:
            image_shape = (1, 1, 1)
            last = 0.0

            def __call__(self, images: np.ndarray) -> None:
                time.sleep(0.02 if time.perf_counter() - self.last > auto.REST / 2 else 0.001)
                self.last = time.perf_counter()

        class Steady:
            image_shape = (1, 1, 1)

            def __call__(self, images: np.ndarray) -> None:
                time.sleep(0.012)

        times = auto.measure({"sleepy": Sleepy(), "steady": Steady()}, 1, seconds=0.5)  # type: ignore[dict-item]
        assert min(times, key=times.__getitem__) == "sleepy"

    def test_one_that_fails_at_its_first_batch_is_left_out(
        self, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(self: TorchEngine, images: np.ndarray) -> np.ndarray:
            raise MemoryError("too large")

        monkeypatch.setattr(TorchEngine, "_run", broken)
        choice = auto.choose(source, batch=2, threads=1, cache=tmp_path / "engines.json")
        assert "torch" not in choice.milliseconds
        assert "engine torch cannot run this model: too large" in caplog.text


def test_quiet_means_little_foreign_work() -> None:
    assert machine.is_quiet(0.05, cores=2)
    assert not machine.is_quiet(0.9, cores=2)
    assert not machine.is_quiet(0.6, cores=64)


def test_core_groups_share_the_cores() -> None:
    assert core_groups(8, 3) == [3, 3, 2]
    assert core_groups(2, 4) == [1, 1, 1, 1]
    assert core_groups(4, 1) == [4]


def test_replicas_answer_side_by_side(source: Source, expected: np.ndarray) -> None:
    both = threading.Barrier(2)

    def work(engine: Engine, index: int) -> np.ndarray:
        both.wait(60)  # a replica that waited for the other to end would break it
        return engine(IMAGES[index : index + 1])

    with Replicas(lambda threads: open_engine(source, "onnxruntime", 1, threads), cores=2, replicas=2) as group:
        answers = [group.submit(functools.partial(work, index=index % 5)) for index in range(12)]
        for index, answer in enumerate(answers):
            np.testing.assert_allclose(answer.result()[0], expected[index % 5], rtol=1e-4, atol=1e-5)


def test_throughput_counts_every_batch(source: Source) -> None:
    seen: list[Repeat] = []
    measured = throughput.measure(
        source,
        batch=4,
        repeat=3,
        engine="onnxruntime",
        replicas=2,
        cores=2,
        batches_per_repeat=5,
        on_repeat=lambda number, repeat: seen.append(repeat),
    )
    assert [repeat.images for repeat in seen] == [40, 40, 40]
    assert all(len(repeat.latencies) == 10 for repeat in seen)
    assert measured.images_per_second > 0
    assert measured.lines()[-1].startswith("latency avg:")
    assert measured.lines()[0].startswith("throughput: ")
