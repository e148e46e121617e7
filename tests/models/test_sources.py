"""Weights whose names show where they come from set what their makers used; contradictions are refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from conveyor import models
from conveyor.errors import UserError
from conveyor.infer.load import from_options
from conveyor.models.layers.conv import SameConv
from conveyor.models.layers.norms import batch_norms
from conveyor.models.sources import completed, identify
from conveyor.options import Options
from conveyor.spec import resolve
from conveyor.training import build_model

CLIP = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}


def weights(folder: Path, name: str, model: str = "efficientnet_b0", **config: object) -> Path:
    """A file of that name with the tensors' names of timm, and `config.json` beside it when there is something in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in models.build(model).state_dict().items()}
    save_file({key: torch.zeros(shape) for key, shape in shapes.items()}, folder / name)
    return folder / name


def options_for(path: Path, **changes: object) -> Options:
    return Options().replace(data="imagenet", synthetic_data=True, weights=str(path), **changes)


@pytest.mark.parametrize(
    ("name", "model", "epsilon", "padding"),
    [
        ("efficientnet_b0_ra-3dd342df", "efficientnet_b0", 1e-5, "symmetric"),
        ("tf_efficientnet_b0_ns-c0e6a31c", "efficientnet_b0", 1e-3, "same"),
        ("mobilenetv3_large_100_ra-f55367f5", "mobilenet_v3_large", 1e-5, "symmetric"),
        ("tf_mobilenetv3_small_100-37f49e2b", "mobilenet_v3_small", 1e-3, "same"),
        ("tf_efficientnet_lite0-0aa007d2", "efficientnet_lite0", 1e-3, "same"),
        ("efficientnet_lite0_ra-37913777", "efficientnet_lite0", 1e-5, "symmetric"),
    ],
)
def test_a_file_name_of_timm_sets_epsilon_and_padding(
    tmp_path: Path, name: str, model: str, epsilon: float, padding: str
) -> None:
    """In training and inference, and it is said; the network really has them."""
    path = weights(tmp_path, f"{name}.safetensors", model)
    spec = resolve(options_for(path, model=model))
    assert (spec.options.model.norm_epsilon, spec.options.model.padding) == (epsilon, padding)
    assert spec.notes[0].startswith(f"{path.name} is timm's ")
    loaded = from_options(options_for(path, model=model), "x")
    for network in (build_model.build_model(spec), loaded.module):
        assert network is not None
        assert {norm.eps for norm in batch_norms(network)} == {epsilon}
        assert any(isinstance(layer, SameConv) for layer in network.modules()) == (padding == "same")
    again, told = completed(spec.options, photographs=True)
    assert (again, told) == (spec.options, ())


def test_a_configuration_beside_the_weights_is_read(tmp_path: Path) -> None:
    """As timm's files on the Hugging Face hub come: model.safetensors and config.json."""
    stated = {"input_size": [3, 240, 240], "crop_pct": 0.9, "interpolation": "bicubic", **CLIP}
    path = weights(tmp_path, "model.safetensors", architecture="tf_efficientnet_b0", pretrained_cfg=stated)
    seen = from_options(options_for(path), "x").preprocessing
    assert (seen.image_size, seen.resize, seen.interpolation) == (240, 266, "bicubic")
    assert seen.normalization == "0.48145466,0.4578275,0.40821073/0.26862954,0.26130258,0.27577711"
    spec = resolve(options_for(path))
    assert (spec.subject.name, spec.subject.image_size, spec.options.model.padding) == ("efficientnet_b0", 240, "same")
    smaller = resolve(options_for(path, image_size=120, normalization="unit")).options
    assert (smaller.data.validation_resize, smaller.data.normalization) == (133, "unit")
    flat = weights(tmp_path / "flat", "model.safetensors", "resnet18", architecture="resnet18", **stated)
    assert from_options(options_for(flat), "x").preprocessing.resize == 266


def test_other_images_keep_their_size_and_statistics(tmp_path: Path) -> None:
    path = weights(
        tmp_path,
        "model.safetensors",
        architecture="efficientnet_b0",
        pretrained_cfg={"input_size": [3, 240, 240], **CLIP},
    )
    spec = resolve(Options().replace(data="cifar10", synthetic_data=True, weights=str(path), replace_head=True))
    assert (spec.subject.image_size, spec.options.model.norm_epsilon, spec.options.data.normalization) == (
        32,
        1e-5,
        None,
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"norm_epsilon": 1e-3}, "made with --norm-epsilon 1e-05: --norm-epsilon 0.001 contradicts it"),
        ({"padding": "same"}, "--padding same contradicts it"),
        ({"model": "efficientnet_b1"}, "is timm's efficientnet_b0, but --model efficientnet_b1"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    path = weights(tmp_path, "model.safetensors", architecture="efficientnet_b0")
    with pytest.raises(UserError, match=told):
        resolve(options_for(path, **changes))


def test_a_configuration_that_contradicts_the_name_or_is_damaged(tmp_path: Path) -> None:
    path = weights(tmp_path, "tf_efficientnet_b0_ns.safetensors", architecture="efficientnet_b0")
    with pytest.raises(UserError, match="one of them is wrong"):
        identify(path, "efficientnet_b0")
    for text, told in (
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"architecture": "resnet18", "input_size": ["x"]}', "is damaged"),
        ('{"architecture": "resnet18", "input_size": {"x": 3}}', "is damaged"),
        ('{"architecture": "resnet18", "pretrained_cfg": 3}', "is damaged"),
        ('{"architecture": "resnet18", "mean": [0, 0, 0], "std": [0, 1, 1]}', "above 0"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=told):
            identify(tmp_path / "model.safetensors", "resnet18")


def test_when_nothing_tells_it_is_said(tmp_path: Path) -> None:
    """Only where it matters, not of this program's own files, and not when the options say it."""
    path = weights(tmp_path, "w.safetensors")
    _, told = completed(options_for(path, model="efficientnet_b0"), photographs=True)
    assert "says whose weights it holds" in told[0]
    assert completed(options_for(path, model="efficientnet_b0", norm_epsilon=1e-3), photographs=True)[1] == ()
    assert completed(options_for(path, model="resnet18"), photographs=True)[1] == ()
    (tmp_path / "manifest").write_text("{}")
    assert completed(options_for(path, model="efficientnet_b0"), photographs=True)[1] == ()


@pytest.mark.parametrize(
    ("first", "model", "epsilon", "padding"),
    [
        ("features.1.0.block.0.0.weight", "efficientnet_b0", 1e-5, "symmetric"),
        ("features.1.0.block.0.0.weight", "efficientnet_b5", 1e-3, "symmetric"),
        ("_blocks.0._bn1.weight", "efficientnet_b0", 1e-3, "same"),
    ],
)
def test_names_of_tensors_tell_too(tmp_path: Path, first: str, model: str, epsilon: float, padding: str) -> None:
    """Before the file's name: torchvision calls its files as timm does."""
    torch.save({first: torch.zeros(1)}, tmp_path / "efficientnet_b0_rwightman-7f5810bc.pth")
    found = identify(tmp_path / "efficientnet_b0_rwightman-7f5810bc.pth", model)
    assert found is not None
    assert (found.epsilon, found.padding) == (epsilon, padding)


def test_variants_that_are_other_networks_are_left_alone(tmp_path: Path) -> None:
    path = weights(tmp_path, "resnet50_clip.safetensors", "resnet18")
    assert identify(path, "resnet50") is None
