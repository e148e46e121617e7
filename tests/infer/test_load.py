"""What a loaded model knows of its training: the names of its classes, which travel with the weights, its normalisation."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.photos import make_folder

from conveyor.data import catalogue
from conveyor.data.batch import Batch
from conveyor.data.open import open_dataset
from conveyor.data.subject import subject
from conveyor.data.transform.prepare import Prepare
from conveyor.infer.engines.engine import open_engine
from conveyor.infer.load import from_options, load
from conveyor.options import Options


def test_names_outlive_the_folder(tmp_path: Path, conveyor: Callable[..., tuple[int, str, str]]) -> None:
    photos, run = tmp_path / "photos", tmp_path / "run"
    make_folder(photos, train=4, validation=2)
    code, _, errors = conveyor(
        "train", "--data", "folder", "--data-dir", photos, "--model", "resnet8", "--image-size", 16, "--run-dir", run,
        "--micro-batch-size", 4, "--updates", 1,
    )  # fmt: skip
    assert code == 0, errors
    assert load(run).class_names == ("ape", "bee")
    shutil.rmtree(photos)
    loaded = load(run)
    assert loaded.class_names == ("ape", "bee")
    assert loaded.spec["num_classes"] == 2


def test_lite_networks_normalise_as_they_were_trained() -> None:
    photographs = Options().replace(data="imagenet", model="efficientnet_lite0", synthetic_data=True)
    assert from_options(photographs, "lite").preprocessing.normalization == "centred"
    for changes, expected in (
        ({"normalization": "imagenet"}, "imagenet"),
        ({"model": "resnet50"}, "imagenet"),
        ({"model": "efficientnet_b0"}, "imagenet"),
        ({"data": "cifar10"}, "cifar"),
    ):
        options = photographs.replace(**changes)
        assert subject(options, catalogue.info(options.data)).normalization == expected


@pytest.mark.parametrize("engine", ["torch", "onnxruntime", "auto"])
def test_grey_images_for_a_network_in_colour_are_repeated_as_in_training(engine: str) -> None:
    """Zeros in place of the second and third channel would cost half the accuracy without a word."""
    options = Options().replace(model="cifar_resnet8", in_channels=4, seed=3)
    loaded, info = from_options(options, "grey"), catalogue.info(options.data)
    raw = open_dataset(options, "validation").read(np.arange(6), 0)
    x, _ = Prepare(options, info)(Batch(raw.images, raw.labels, torch.arange(6), 0, 0, 0, 6), train=False)
    assert loaded.module is not None
    with torch.no_grad():
        wanted = loaded.module(x).numpy()
    np.testing.assert_allclose(open_engine(loaded, engine, 6)(raw.images.numpy()), wanted, rtol=1e-3, atol=1e-4)
