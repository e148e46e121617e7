"""Slots, accumulation, spans: the gradient is the mean over the global batch however it is cut."""

import itertools
from typing import Any

import pytest
import torch
from tests.run.runs import small_spec

from conveyor.data.batch import Batch
from conveyor.run.assemble import UserObjects, make_feed, make_prepare, make_session
from conveyor.training.loss import SAMPLES
from conveyor.training.session import Session
from conveyor.world.world import World


def session_of(**changes: Any) -> tuple[Session, list[Batch]]:
    """A session and the batches of its first two updates."""
    spec = small_spec(**changes)
    world = World()
    prepare = make_prepare(spec, world)
    session = make_session(spec, world, UserObjects(), None, prepare)
    session.lane.module.train()
    with make_feed(spec, world, UserObjects(), prepare, 0) as feed:
        return session, list(itertools.islice(feed, 2 * spec.topology.slots))


def gradients(scale: float = 1.0, **changes: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor, Session]:
    session, batches = session_of(**changes)
    tally = session.lane.gradients(iter(batches), 0, scale)
    found = {name: p.grad for name, p in session.lane.module.named_parameters() if p.grad is not None}
    return found, tally.sum(0), session


@pytest.mark.parametrize(("micro_batch", "accumulation", "replicas"), [(4, 4, 1), (4, 1, 4), (2, 4, 2), (16, 1, 1)])
def test_the_gradient_is_the_mean_over_the_global_batch(micro_batch: int, accumulation: int, replicas: int) -> None:
    """With norms per image the cut of the batch must not matter at all."""
    whole, whole_tally, _ = gradients(norm="group", micro_batch_size=16)
    cut, cut_tally, _ = gradients(
        norm="group", micro_batch_size=micro_batch, accumulation=accumulation, replicas=replicas, label_smoothing=0.0
    )
    for name, value in whole.items():
        torch.testing.assert_close(cut[name], value, rtol=2e-4, atol=2e-6)
    torch.testing.assert_close(cut_tally, whole_tally, rtol=1e-5, atol=0.0)
    assert cut_tally[SAMPLES] == 16


def test_a_span_is_one_bigger_batch() -> None:
    """Two replicas of 8 with a span of 2 see the statistics of 16 samples."""
    whole, _, whole_session = gradients(micro_batch_size=16)
    joined, _, joined_session = gradients(micro_batch_size=8, replicas=2, bn_span=2)
    apart, _, _ = gradients(micro_batch_size=8, replicas=2)
    for name, value in whole.items():
        torch.testing.assert_close(joined[name], value, rtol=1e-4, atol=1e-6)
    assert any(not torch.allclose(apart[name], value, rtol=1e-2) for name, value in whole.items())
    for session in (whole_session, joined_session):
        session.updater.apply(0, 0.0)
    expected, found = whole_session.model_state(), joined_session.model_state()
    torch.testing.assert_close(found["bn1.running_var"], expected["bn1.running_var"])


def test_the_loss_scale_cancels_out() -> None:
    plain, _, one = gradients()
    scaled, _, other = gradients(1024.0, loss_scale="1024")
    for name, value in plain.items():
        torch.testing.assert_close(scaled[name], value * 1024)
    one.updater.apply(0, 0.1)
    other.updater.apply(0, 0.1)
    for name, value in one.model_state().items():
        torch.testing.assert_close(other.model_state()[name], value)


def test_norm_statistics_move_once_per_update_by_the_mean_over_the_slots() -> None:
    session, batches = session_of(accumulation=4)
    before = session.model_state()["bn1.running_mean"].clone()
    session.lane.gradients(iter(batches), 0, 1.0)
    assert torch.equal(session.model_state()["bn1.running_mean"], before)
    session.updater.apply(0, 0.1)
    state = session.model_state()
    assert not torch.equal(state["bn1.running_mean"], before)
    assert int(state["bn1.num_batches_tracked"]) == 4


def test_clipping_limits_the_global_norm() -> None:
    clipped, free = (session_of(clip_norm=limit, optimizer="sgd") for limit in (0.01, 1e9))
    moved = []
    for session, batches in (clipped, free):
        before = {name: value.clone() for name, value in session.lane.module.named_parameters()}
        session.lane.gradients(iter(batches), 0, 1.0)
        session.updater.apply(0, 1.0)
        steps = [value.detach() - before[name] for name, value in session.lane.module.named_parameters()]
        moved.append(torch.stack([step.square().sum() for step in steps]).sum().sqrt())
        assert session.updater.gradient_norm is not None
    torch.testing.assert_close(moved[0], torch.tensor(0.01), rtol=1e-3, atol=0.0)
    torch.testing.assert_close(moved[1].double(), free[0].updater.gradient_norm, rtol=1e-4, atol=0.0)


def test_an_overflow_under_a_moving_loss_scale_skips_the_update() -> None:
    session, batches = session_of(loss_scale="auto")
    before = {name: value.clone() for name, value in session.model_state().items()}
    session.lane.gradients(iter(batches), 0, session.updater.loss_scale.value)
    next(iter(session.lane.module.parameters())).grad[0] = float("inf")  # type: ignore[index]
    scale = session.updater.loss_scale.value
    session.updater.apply(0, 0.1)
    for name, value in session.model_state().items():
        assert torch.equal(value, before[name])
    assert session.updater.loss_scale.skipped == 1
    assert session.updater.loss_scale.value == scale / 2
    session.lane.gradients(iter(batches[1:]), 1, session.updater.loss_scale.value)
    session.updater.apply(1, 0.1)
    assert not torch.equal(session.model_state()["conv1.weight"], before["conv1.weight"])
    assert session.updater.loss_scale.skipped == 1


def test_mixing_survives_a_span() -> None:
    joined, tally, _ = gradients(micro_batch_size=4, replicas=2, bn_span=2, mixup_alpha=0.5)
    assert tally[SAMPLES] == 8
    assert all(bool(value.isfinite().all()) for value in joined.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "group"},
        {"recompute": ["block"]},
        {"bn_span": 2, "replicas": 2},
        {"model": "efficientnet_b0", "norm": "group", "dropout": 0.3, "survival": 0.7, "micro_batch_size": 4},
        {"stable_norm": True, "precision": "16.32"},
    ],
)
def test_joined_slots_give_what_slots_one_by_one_give(changes: dict[str, Any]) -> None:
    changes = {"micro_batch_size": 3, "accumulation": 4, **changes}
    joined, joined_tally, one = gradients(**changes, pass_slots="4")
    assert len(one.lane.recent) == one.spec.topology.slots // 4
    apart, apart_tally, other = gradients(**changes, pass_slots=str(changes.get("bn_span", 1)))
    # Sums in another order; half gradients are rounded once per pass. Small elements of deep networks are sums of large
    # ones that cancel, so a tensor is compared as a whole.
    limit = 1e-3 if "precision" in changes else 1e-5
    for name, value in apart.items():
        assert (joined[name] - value).norm() <= limit * value.norm(), name
    torch.testing.assert_close(joined_tally, apart_tally, rtol=1e-5, atol=0.0)
    for session in (one, other):
        session.updater.apply(0, 0.0)
    for name, value in other.model_state().items():
        torch.testing.assert_close(one.model_state()[name], value, rtol=1e-4, atol=1e-5)
