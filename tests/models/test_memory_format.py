"""channels_last from end to end: no activation or gradient in another layout, no hidden copy."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from conveyor import models

BATCH = 2


def is_picture(shape: Any) -> bool:
    return len(shape) == 4 and shape[0] == BATCH and shape[1] > 1 and shape[2] * shape[3] > 1


class OtherLayouts(TorchDispatchMode):
    """Counts results that are dense pictures and not in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and is_picture(value.shape) and not _is_view(value):
                self.found[str(func)] += not value.is_contiguous(memory_format=torch.channels_last)
        return result


def _is_view(value: Tensor) -> bool:
    """Broadcast, or a part of a larger tensor."""
    return 0 in value.stride() or value.numel() * value.element_size() < value.untyped_storage().nbytes()


CASES = [
    ("resnet18", {}, 0),
    ("resnet18", {"norm": "group"}, 0),
    ("resnet18", {"norm": "group", "stable_norm": True}, 0),
    ("resnext14", {"norm": "proxy"}, 0),
    ("cifar_resnet8", {}, 4),  # two shortcuts A: each writes its result and its gradient once
    ("efficientnet_b0", {}, 0),
    ("efficientnet_b0", {"norm": "group", "group_dim": 16, "expand_ratio": 4}, 0),
    ("mobilenet_v2", {}, 0),
    ("mobilenet_v3_small", {}, 0),
]


@pytest.mark.parametrize(("name", "options", "copies"), CASES)
def test_training_keeps_channels_last_without_copies(name: str, options: dict[str, object], copies: int) -> None:
    torch.manual_seed(0)
    model = models.build(name, num_classes=5, **options).to(memory_format=torch.channels_last)
    x = torch.randn(BATCH, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    with OtherLayouts() as other:
        model(x).square().sum().backward()
    assert +other.found == {}
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        model(x).square().sum().backward()
    moves = [
        event.name
        for event in seen.events() or []
        if event.name in ("aten::copy_", "aten::clone", "aten::_to_copy")
        and event.input_shapes
        and is_picture(event.input_shapes[0])
    ]
    assert len(moves) == copies, Counter(moves)


def test_building_the_largest_on_meta_fills_nothing() -> None:
    with torch.device("meta"):
        model = models.build("efficientnet_b7")
    assert all(parameter.is_meta for parameter in model.parameters())
