"""Gradients summed over the groups of an update in the order of the tree, over lanes, in buckets."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conveyor.layout import deal
from conveyor.world.gradients import GradientSum, pack


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


def network() -> tuple[nn.Module, nn.Parameter, nn.Parameter]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(8, 2))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.bfloat16))


def loss_of(model: nn.Module, half: Tensor, group: int) -> Tensor:
    images = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(group))
    return model(images).square().sum() * 10.0 ** (group % 3) + half.sum() * 3


def by_definition(groups: int) -> list[Tensor]:
    """The tree written out, one group at a time."""

    def node(start: int, stop: int) -> list[Tensor]:
        if stop - start > 1:
            middle = start + (stop - start) // 2
            return [left + right for left, right in zip(node(start, middle), node(middle, stop), strict=True)]
        model, _, half = network()
        loss_of(model, half, start).backward()
        return [one.grad for one in model.parameters() if one.grad is not None]

    return node(0, groups)


def reduce_case(rank: int, lanes: int, groups: int, hidden: int | None = None) -> dict[str, Any]:
    """`hidden`: the lane that cannot open the others' memory."""
    from conveyor.world import shared_rows
    from conveyor.world.distributed import ProcessWorld
    from conveyor.world.world import World

    model, unused, half = network()
    world = ProcessWorld(lanes, 1) if lanes > 1 else World()
    dealt = deal(groups, 1, lanes)
    with pytest.MonkeyPatch.context() as patch:
        if rank == hidden:
            patch.setattr(shared_rows, "_mapped", lambda told, size: None)
        reducer = world.gradient_sum([[*model.parameters(), unused, half]], 64, dealt)
    launched: list[bool] = []
    launch, in_backward = reducer._launch, True
    reducer._launch = lambda: (launched.append(in_backward), launch())  # type: ignore[method-assign]
    for _ in range(2):
        mine = dealt.lanes[world.lane]
        for group in mine:
            if group == mine[-1]:
                reducer.start()
            loss_of(model, half, group).backward()
            reducer.leaf(group)
        in_backward = False
        reducer.finish()
        in_backward = True
        gradients = [one.grad.clone() for one in model.parameters()]
        strides = [one.grad.stride() == one.stride() for one in model.parameters()]
        assert torch.equal(unused.grad, torch.zeros(3))
        halves = half.grad.tolist()
        for one in (*model.parameters(), unused, half):
            one.grad = None
    reducer.close()
    shared = [bucket.shared is not None for bucket in reducer.buckets]
    return {"gradients": gradients, "strides": strides, "launched": launched, "half": halves, "shared": shared}


@pytest.mark.parametrize(("lanes", "groups"), [(1, 1), (1, 6), (2, 2), (2, 7), (3, 4), (3, 7), (4, 4), (3, 2), (4, 10)])
def test_every_lane_ends_with_the_bits_of_the_tree(pool: Any, lanes: int, groups: int) -> None:
    expected = by_definition(groups)
    for result in pool.run(reduce_case, lanes, lanes=lanes, groups=groups):
        assert [torch.equal(*pair) for pair in zip(result["gradients"], expected, strict=True)] == [True] * 6
        assert result["half"] == [3.0 * groups] * 3
        assert all(result["strides"])


@pytest.mark.parametrize(("lanes", "groups"), [(2, 2), (3, 7)])
def test_one_lane_that_cannot_open_the_others_memory_makes_all_send_the_same_bits(
    pool: Any, lanes: int, groups: int
) -> None:
    shared, sent = (pool.run(reduce_case, lanes, lanes=lanes, groups=groups, hidden=hidden) for hidden in (None, 1))
    assert all(all(result["shared"]) for result in shared)
    assert not any(any(result["shared"]) for result in sent)
    for one, other in zip(shared, sent, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one["gradients"], other["gradients"], strict=True))


def test_buckets_leave_while_gradients_are_still_computed(pool: Any) -> None:
    # Buckets wait for the one before: the unused parameter's is the second, so the rest is sent at the end.
    assert all(any(result["launched"]) for result in pool.run(reduce_case, 2, lanes=2, groups=2))


def test_sections_end_by_themselves() -> None:
    """Parts of a pipeline end their groups in orders of their own, also from the last group to the first."""
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    sums = GradientSum([[one], [other]], 64, deal(3, 1, 1))
    values = [torch.tensor([1e8, 1.0]), torch.tensor([-1e8, 2.0]), torch.tensor([0.5, 3.0])]
    for order, parameter, section in ((range(3), one, 0), (reversed(range(3)), other, 1)):
        for group in order:
            parameter.grad = values[group].clone()
            sums.leaf(group, section)
    sums.finish()
    expected = values[0] + (values[1] + values[2])
    assert torch.equal(one.grad, expected)
    assert torch.equal(other.grad, expected)
