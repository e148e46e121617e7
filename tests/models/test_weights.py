"""Weight files: strict, with a clear list; another class count on request; nothing executed."""

import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from conveyor import models
from conveyor.errors import UserError
from conveyor.models.weights import head_name, load_state, load_weights, read_state


def fresh(name: str = "cifar_resnet8", **options: object) -> torch.nn.Module:
    return models.build(name, **{"num_classes": 10, **options})


def test_both_kinds_of_file_give_the_same_weights(tmp_path: Path) -> None:
    model = fresh()
    torch.save(model.state_dict(), tmp_path / "a.pth")
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}, "epoch": 3}, tmp_path / "b.pth"
    )
    save_file(model.state_dict(), tmp_path / "c.safetensors")
    for name in ("a.pth", "b.pth", "c.safetensors"):
        other = fresh()
        assert load_weights(other, tmp_path / name) == []
        assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())


def test_efficientnet_pytorch_names_load(tmp_path: Path) -> None:
    model = fresh("efficientnet_b0")
    names = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
    inner = {
        "conv_pw": "_expand_conv",
        "bn1": "_bn0",
        "conv_dw": "_depthwise_conv",
        "bn2": "_bn1",
        "se.conv_reduce": "_se_reduce",
        "se.conv_expand": "_se_expand",
        "conv_pwl": "_project_conv",
        "bn3": "_bn2",
    }
    first = {**inner, "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
    flat = [f"blocks.{stage}.{index}" for stage, row in enumerate(model.blocks) for index in range(len(row))]
    state = {}
    for key, value in model.state_dict().items():
        module, _, field = key.rpartition(".")
        if module.startswith("blocks"):
            block = ".".join(module.split(".")[:3])
            table = first if block == "blocks.0.0" else inner
            module = f"_blocks.{flat.index(block)}.{table[module[len(block) + 1 :]]}"
        else:
            module = names[module]
        state[f"{module}.{field}"] = value
    torch.save(state, tmp_path / "weights.pth")
    other = fresh("efficientnet_b0", padding="same")
    assert load_weights(other, tmp_path / "weights.pth") == []
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())


def test_another_number_of_classes_needs_a_word(tmp_path: Path) -> None:
    model = fresh(num_classes=10)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    other = fresh(num_classes=4)
    head = other.fc.weight.clone()
    with pytest.raises(UserError, match="10 classes and the model has 4: add --replace-head"):
        load_weights(other, tmp_path / "w.safetensors")
    assert load_weights(other, tmp_path / "w.safetensors", replace_head=True) == ["fc.weight", "fc.bias"]
    assert torch.equal(other.fc.weight, head)
    assert torch.equal(other.conv1.weight, model.conv1.weight)


@pytest.mark.parametrize(
    "name", ["cifar_resnet8", "resnext14", "efficientnet_b0", "mobilenet_v2", "mobilenet_v3_small", "squeezenet"]
)
@pytest.mark.parametrize("init", ["torch", "tensorflow"])
def test_a_replaced_head_starts_small(name: str, init: str) -> None:
    """Within 1 / sqrt(inputs), not 1 / sqrt(classes): the loaded features must survive the first updates."""
    source, model = fresh(name, num_classes=10, init=init), fresh(name, num_classes=3, init=init)
    head = model.get_submodule(head_name(model))
    load_state(model, source.state_dict(), "the file", replace_head=True)
    assert 0 < float(head.weight.detach().abs().max()) <= head.weight[0].numel() ** -0.5 * (1 + 1e-6)
    assert not head.bias.any()


def test_a_fourth_input_channel_gets_zeros(tmp_path: Path) -> None:
    model, x = fresh().eval(), torch.randn(2, 3, 16, 16)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    wider = fresh(in_channels=4).eval()
    load_weights(wider, tmp_path / "w.safetensors")
    with torch.no_grad():
        padded = torch.cat([x, torch.randn(2, 1, 16, 16)], 1)
        torch.testing.assert_close(wider(padded), model(x))


def test_what_does_not_fit_is_listed(tmp_path: Path) -> None:
    state = fresh().state_dict()
    del state["layer1.0.conv1.weight"]
    state["extra.weight"] = torch.zeros(1)
    state["bn1.bias"] = torch.zeros(3)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(UserError) as told:
        load_weights(fresh(), tmp_path / "w.safetensors")
    assert "missing layer1.0.conv1.weight" in str(told.value)
    assert "lacks: extra.weight" in str(told.value)
    assert "bn1.bias ((3,) instead of (16,))" in str(told.value)
    with pytest.raises(UserError, match=r"and \d+ more"):
        load_weights(fresh("cifar_resnet20"), tmp_path / "w.safetensors")


@pytest.mark.parametrize("shape", [(), (5,), (10, 64, 1)])
def test_a_head_of_other_dimensions_does_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"another shape for fc\.weight"):
        load_state(fresh(), {**fresh().state_dict(), "fc.weight": torch.zeros(shape)}, "the file")


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (marker,))

    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Evil(), protocol=2))
    (tmp_path / "broken.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00garbage!")
    torch.save({"a": 3}, tmp_path / "odd.pth")
    for name, told in (
        ("evil.pth", "no safetensors file or plain"),
        ("broken.safetensors", "safetensors"),
        ("odd.pth", "no tensor"),
        ("absent.pth", "there is no"),
    ):
        with pytest.raises(UserError, match=told):
            load_weights(fresh(), tmp_path / name)
    assert not marker.exists()


def test_a_small_file_does_not_fill_the_memory(tmp_path: Path) -> None:
    """torch unpacks what somebody has packed again: a thousand times the file's size."""
    torch.save({"a.weight": torch.zeros(1 << 20)}, tmp_path / "plain.pt")
    assert read_state(tmp_path / "plain.pt")["a.weight"].numel() == 1 << 20
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for member in plain.namelist():
            packed.writestr(member, plain.read(member))
    assert (tmp_path / "packed.pt").stat().st_size < 20_000
    for outline in (False, True):
        with pytest.raises(UserError, match="it would unpack to 4"):
            read_state(tmp_path / "packed.pt", outline=outline)


def test_a_note_when_the_makers_used_another_padding(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from conveyor.models.weights import note_differences

    note_differences(fresh("efficientnet_cifar"), {"_blocks.0._bn1.weight": torch.zeros(1)})
    assert "--padding same" in caplog.text


def test_a_note_when_the_makers_used_another_epsilon(caplog: pytest.LogCaptureFixture) -> None:
    from conveyor.models.weights import note_differences

    state = {"features.1.0.block.0.0.weight": torch.zeros(1)}
    note_differences(fresh("efficientnet_cifar", norm_epsilon=1e-5), state)
    assert caplog.text == ""
    note_differences(fresh("efficientnet_cifar"), state)
    assert "--norm-epsilon 1e-5; here it is 0.001" in caplog.text
