"""Gradients summed over lanes in buckets."""

from typing import Any

import torch
from torch import nn

from conveyor.pipeline.buckets import BucketReducer, pack


def test_buckets_hold_the_last_parameters_first() -> None:
    layers = [nn.Linear(4, 4, bias=False) for _ in range(4)]
    frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
    parameters = [layer.weight for layer in (*layers, frozen)]
    buckets = pack(parameters, 2 * 64)
    assert [[id(one) for one in bucket] for bucket in buckets] == [
        [id(layers[3].weight), id(layers[2].weight)],
        [id(layers[1].weight), id(layers[0].weight)],
    ]
    assert [len(bucket) for bucket in pack(parameters, 1)] == [1, 1, 1, 1], "a bucket holds at least one"


def reduce_case(rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(8, 2))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    unused = nn.Parameter(torch.ones(3))
    half = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    reducer = BucketReducer([*model.parameters(), unused, half], 64)
    launched = []
    launch = reducer._launch
    reducer._launch = lambda: (launched.append(in_backward), launch())  # type: ignore[method-assign]
    in_backward = True
    for update in range(2):
        # Rank 1 has two slots, rank 0 one: only the last one's backward pass is armed.
        for slot in range(rank + 1):
            if slot == rank:
                reducer.start()
            (model(torch.full((1, 2, 4, 4), 1.0 + slot + rank)).sum() + half.sum() * 3).backward()
        in_backward = False
        reducer.finish()
        in_backward = True
        gradients = [one.grad.clone() for one in (*model.parameters(), half)]
        strides = [one.grad.stride() == one.stride() for one in model.parameters()]
        assert torch.equal(unused.grad, torch.zeros(3))
        if update == 0:
            model.zero_grad(set_to_none=True)
            unused.grad = half.grad = None
    reducer.close()
    return {"gradients": gradients, "strides": strides, "launched": launched}


def test_lanes_end_with_the_sum(pool: Any) -> None:
    results = pool.run(reduce_case, 2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(8, 2))
    for value in (1.0, 2.0, 3.0):
        model(torch.full((1, 2, 4, 4), value)).sum().backward()
    expected = [one.grad for one in model.parameters()]
    for result in results:
        for found, wanted in zip(result["gradients"], expected, strict=False):
            torch.testing.assert_close(found, wanted)
        assert result["gradients"][-1].tolist() == [9.0, 9.0, 9.0]
        assert all(result["strides"])
        # Buckets wait for the one before: the unused parameter's is the second, so the rest is sent at the end.
        assert any(result["launched"]), "a bucket was sent while gradients were still being computed"
