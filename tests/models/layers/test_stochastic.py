"""What is dropped depends on seed, update, slot and layer, and on nothing else."""

import pytest
import torch

from conveyor import models
from conveyor.errors import UserError
from conveyor.models.layers.stochastic import DropConnect, Dropout
from conveyor.numerics.context import current, keyed, use


def labelled(layer: Dropout | DropConnect, label: str = "layer") -> Dropout | DropConnect:
    layer.label = label
    return layer


@pytest.mark.parametrize("kind", [Dropout, DropConnect])
def test_same_key_same_choice_and_any_other_key_another(kind: type[Dropout] | type[DropConnect]) -> None:
    x = torch.ones(64, 1, 1, 1)
    layer = labelled(kind(0.5))

    def draw(seed: int, update: int, slot: int, label: str = "layer") -> torch.Tensor:
        torch.rand(3)
        layer.label = label
        with keyed(seed, update, slot):
            return layer(x)

    first = draw(1, 2, 3)
    assert torch.equal(first, draw(1, 2, 3))
    for other in (draw(0, 2, 3), draw(1, 3, 3), draw(1, 2, 2), draw(1, 2, 3, "other")):
        assert not torch.equal(first, other)
    assert current() is None


def test_joined_slots_drop_what_the_slots_drop_alone() -> None:
    layer, x = labelled(Dropout(0.3)), torch.randn(8, 10)
    with keyed(5, 1, (6, 7)):
        joined = layer(x)
        key = current()
    parts = []
    for slot, part in zip((6, 7), x.split(4), strict=True):
        with keyed(5, 1, slot):
            parts.append(layer(part))
    assert torch.equal(joined, torch.cat(parts))
    with use(key):
        assert torch.equal(joined, layer(x))


def test_rates_and_scale() -> None:
    x = torch.ones(20_000, 1, 1, 1)
    with keyed(0, 0, 0):
        y = labelled(DropConnect(0.2))(x)
    assert set(y.unique().tolist()) == {0.0, 1.25}
    assert abs(y.mean().item() - 1) < 0.02
    assert torch.equal(DropConnect(0.2).eval()(x), x)
    assert DropConnect(1.0)(x).eq(0).all()


def test_drop_connect_drops_whole_samples_and_grows_with_depth() -> None:
    model = models.build("efficientnet_b0", survival=0.8)
    layers = [module for module in model.modules() if isinstance(module, DropConnect)]
    flat = [block for stage in model.blocks for block in stage]
    for index, block in enumerate(flat):
        if block.drop_path is not None:
            assert block.drop_path.rate == pytest.approx(0.2 * index / 16)
    assert len({layer.label for layer in layers}) == len(layers) == 9
    out = layers[-1](torch.ones(50, 3, 2, 2))
    assert all(len(sample.unique()) == 1 for sample in out)
    off = models.build("efficientnet_b0", survival=1.0)
    assert not [module for module in off.modules() if isinstance(module, DropConnect)]


def test_whole_network_repeats_with_the_key() -> None:
    torch.manual_seed(0)
    model = models.build("efficientnet_cifar", num_classes=4, dropout=0.5)
    x = torch.randn(4, 3, 32, 32)
    with keyed(1, 1, 1):
        first = model(x)
    with keyed(1, 1, 1):
        again = model(x)
    with keyed(1, 1, 2):
        other = model(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "more"), [("resnet18", {}), ("resnet50", {}), ("cifar_resnext29", {}), ("squeezenet", {"bypass": True})]
)
def test_stochastic_depth_grows_linearly_to_the_last_block(name: str, more: dict[str, bool]) -> None:
    """Block l of L is dropped with probability (1 - survival) l / L (Huang et al. 2016)."""
    with torch.device("meta"):
        model = models.build(name, num_classes=4, survival=0.8, **more)
    names = models.blocks(model)
    rates = [getattr(model.get_submodule(block), "drop_path", None) for block in names]
    expected = [0.2 * (number + 1) / len(names) for number in range(len(names))]
    found = [(rate.rate, right) for rate, right in zip(rates, expected, strict=True) if rate is not None]
    assert len(found) == (4 if name == "squeezenet" else len(names))
    assert [one for one, _ in found] == pytest.approx([right for _, right in found])
    assert all(rate is None or rate.label for rate in rates), "the key of what is dropped"


def test_a_dropped_block_is_its_shortcut() -> None:
    torch.manual_seed(0)
    model = models.build("cifar_resnet8", num_classes=4, survival=0.5).train()
    block = model.get_submodule("layer1.0")
    assert block.drop_path is not None
    block.drop_path.rate = 1.0
    x = torch.randn(3, 16, 8, 8)
    assert torch.equal(block(x), x.relu())
    whole = models.build("cifar_resnet8", num_classes=4).eval()
    whole.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(model.eval()(images), whole(images)), "nothing is dropped in evaluation"


def test_what_has_no_shortcuts_has_no_stochastic_depth() -> None:
    for name, part in (("squeezenet", "--bypass"), ("cifar_fast", "no option 'survival'")):
        with pytest.raises(UserError, match=part):
            models.build(name, num_classes=4, survival=0.8)
