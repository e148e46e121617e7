"""Small states for the checkpoint tests."""

import torch

from conveyor.checkpoint.state import State


def make_state(update: int = 7, seed: int = 0) -> State:
    """Every kind of tensor that a checkpoint meets."""
    generator = torch.Generator().manual_seed(seed + update)
    return State(
        model={
            "conv.weight": torch.randn(4, 3, 3, 3, generator=generator).contiguous(memory_format=torch.channels_last),
            "norm.running_mean": torch.randn(4, generator=generator),
            "norm.num_batches_tracked": torch.tensor(update),
            "head.weight": torch.randn(5, 4, generator=generator).half(),
            "head.bias": torch.randn(5, generator=generator).bfloat16(),
            "empty": torch.empty(0, 3),
        },
        optimizer={"momentum/conv.weight": torch.randn(4, 3, 3, 3, generator=generator), "step": torch.tensor(update)},
        averages={"conv.weight": torch.randn(4, 3, 3, 3, generator=generator)},
        progress={"update": update, "epoch": 0.1 + 0.2, "best": None, "sums": [1e-300, 2.5]},
        options={"model": "resnet8", "splits": []},
    )


def same(one: State, other: State) -> bool:
    """Equal to the bit, types and shapes included."""
    for left, right in zip(one.groups().values(), other.groups().values(), strict=True):
        if left.keys() != right.keys():
            return False
        for name, tensor in left.items():
            found = right[name]
            if tensor.dtype != found.dtype or tensor.shape != found.shape or not torch.equal(tensor, found):
                return False
    return one.progress == other.progress and one.options == other.options
