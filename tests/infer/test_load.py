"""What a loaded model knows of its training: the names of its classes, which travel with the weights, its normalisation."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.data.photos import make_folder

from conveyor.data import catalogue
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
        info = catalogue.info(options.data)
        assert catalogue.normalization(options.data, info, options.model.model) == expected
