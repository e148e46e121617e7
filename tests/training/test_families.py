"""Every family of networks learns, with the compiled kernels that training on a CPU uses."""

from pathlib import Path
from typing import Any

import pytest
from tests.run.runs import checkpoint, train


@pytest.mark.parametrize(
    ("model", "size", "changes"),
    [
        ("resnet18", 32, {"norm": "none"}),
        ("resnet26", 32, {"norm": "proxy"}),
        ("resnext14", 32, {"norm": "group"}),
        ("cifar_resnet8", 16, {"norm": "none"}),
        ("cifar_bottleneck11", 16, {}),
        ("cifar_resnext11", 16, {}),
        ("cifar_fast", 32, {}),
        ("efficientnet_cifar", 32, {}),
        ("efficientnet_lite0", 32, {}),
        ("mobilenet_v2", 32, {}),
        ("mobilenet_v3_small", 32, {}),
        ("squeezenet", 64, {}),
        ("squeezenet", 64, {"bypass": True, "recompute": ["block"]}),
        ("toy_model", 32, {}),
        ("toy_model_bn", 32, {}),
    ],
)
def test_two_updates_change_every_filter(tmp_path: Path, model: str, size: int, changes: dict[str, Any]) -> None:
    run = tmp_path / "run"
    train(
        run, model=model, data="cifar10", generated_data=True, image_size=size, micro_batch_size=4, updates=2,
        updates_per_epoch=2, learning_rate=0.01, validation=False, checkpoint_at_start=True, **changes,
    )  # fmt: skip
    before, after = checkpoint(run, 0).model, checkpoint(run, 2).model
    assert all(after[name].isfinite().all() for name in after)
    still = [name for name, value in after.items() if value.dim() > 1 and value.equal(before[name])]
    assert still == FIXED.get(model, []), "filters that did not move"


FIXED = {"cifar_fast": ["whiten.weight"]}
"""What stays as it is by design."""
