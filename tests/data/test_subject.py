"""One answer to: which network, what does it see, what does it answer."""

import pytest
from tests.data.photos import make_folder

from conveyor.data import catalogue
from conveyor.data.subject import Subject, planned, subject
from conveyor.infer.load import from_options
from conveyor.options import Options
from conveyor.spec import resolve


@pytest.mark.parametrize("model", ["efficientnet_b1", "efficientnet_b4", "resnet18", "efficientnet_lite0", None])
@pytest.mark.parametrize("data", ["imagenet", "cifar10", "digits"])
def test_training_inference_and_planning_agree(model: str | None, data: str) -> None:
    """A network with a size of its own sees that size everywhere, unless the images have one."""
    options = Options().replace(model=model, data=data, synthetic_data=True)
    spec, about = resolve(options), planned(options)
    assert (spec.subject.name, spec.subject.image_size, spec.subject.num_classes, spec.subject.in_channels) == (
        about.name, about.image_size, about.num_classes, about.in_channels,
    )  # fmt: skip
    seen = from_options(options, "fresh").preprocessing
    assert (seen.image_size, seen.channels, seen.in_channels) == (about.image_size, about.channels, about.in_channels)
    assert (seen.normalization, seen.resize) == (about.normalization, about.resize)
    if model is not None and data == "imagenet":
        assert about.image_size == {"efficientnet_b1": 240, "efficientnet_b4": 380}.get(model, 224)


def test_without_data_a_plan_takes_the_models_own_numbers() -> None:
    about = planned(Options().replace(model="cifar_resnet20"))
    assert (about.image_size, about.num_classes, about.in_channels) == (32, 10, 3)


def test_a_folder_is_planned_for_as_it_would_be_trained(tmp_path: object) -> None:
    make_folder(tmp_path, train=2, validation=1)
    options = Options().replace(model="efficientnet_b1", data_dir=str(tmp_path))
    assert planned(options) == subject(options, catalogue.info(options.data))
    assert planned(options).num_classes == 2


def of(**changes: object) -> Subject:
    return subject(Options().replace(data="imagenet", synthetic_data=True, **changes), catalogue.known()["imagenet"])


def test_what_the_options_say_comes_first() -> None:
    asked = of(model="efficientnet_b4", image_size=96, num_classes=7, validation_resize=112, normalization="unit")
    assert (asked.image_size, asked.num_classes, asked.resize, asked.normalization) == (96, 7, 112, "unit")
    assert of(image_size=96, validation_resize=64).resize == 96


def test_photographs_are_grey_for_a_network_with_one_channel() -> None:
    assert (of(in_channels=1).channels, of(in_channels=4).channels) == (1, 3)
