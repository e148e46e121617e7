"""Mixup and cutmix: values, labels, distributions, purity."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.data.batch import Target
from conveyor.data.transform.mixing import Mixing, cut_box, mix, mixup_factors
from conveyor.errors import UserError

IMAGES = torch.rand(6, 8, 8, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6)
SAMPLES = torch.arange(50, 56)
KEY = {"seed": 1, "epoch": 2, "update": 3, "slot": 4}


def probabilities(target: Target, classes: int) -> torch.Tensor:
    """The target as rows of class probabilities, [B, classes]."""
    rows = torch.zeros(len(target.labels), classes)
    for labels, weight in target.mixed or [(target.labels, torch.ones(len(target.labels)))]:
        rows.scatter_add_(1, labels.unsqueeze(1), weight.unsqueeze(1))
    return rows


def test_mixup_values_and_labels() -> None:
    images, terms = mix(IMAGES, LABELS, SAMPLES, Mixing(mixup_alpha=0.4), **KEY)
    factor = mixup_factors(0.4, 1, 2, SAMPLES)
    assert terms is not None
    assert [labels.tolist() for labels, _ in terms] == [[0, 1, 2, 3, 4, 5], [5, 0, 1, 2, 3, 4]]
    for i in range(6):
        expected = factor[i] * IMAGES[i] + (1 - factor[i]) * IMAGES[i - 1]
        torch.testing.assert_close(images[i], expected)
    torch.testing.assert_close(terms[0][1], factor)
    torch.testing.assert_close(terms[1][1], 1 - factor)


@pytest.mark.parametrize("size", [2, 6])
def test_cutmix_takes_one_box_from_the_partner(size: int) -> None:
    images, terms = mix(IMAGES[:size], LABELS[:size], SAMPLES[:size], Mixing(cutmix_lambda=0.5), **KEY)
    assert terms is not None
    roll = 2 if size > 2 else 1
    replaced = (images != IMAGES[:size]).any(3)
    assert (replaced == replaced[0]).all()
    rows, columns = replaced[0].nonzero().unbind(1)
    box = (slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1))
    assert torch.equal(images[(slice(None), *box)], IMAGES[:size].roll(roll, 0)[(slice(None), *box)])
    share = replaced[0].float().mean().item()
    torch.testing.assert_close(terms[0][1], torch.full((size,), 1 - share))
    torch.testing.assert_close(terms[1][1], torch.full((size,), share))
    assert terms[1][0].tolist() == LABELS[:size].roll(roll).tolist()


def test_both_give_four_terms_that_add_up() -> None:
    images, terms = mix(IMAGES, LABELS, SAMPLES, Mixing(mixup_alpha=1.0, cutmix_lambda=0.6), **KEY)
    assert terms is not None
    assert len(terms) == 4
    torch.testing.assert_close(sum(weight for _, weight in terms), torch.ones(6))
    target = probabilities(Target(LABELS, terms), 6)
    # The pixels are mixed like the labels: check on images that are constant, each with its own unit vector.
    constant = torch.eye(6).view(6, 1, 1, 6).expand(6, 8, 8, 6)
    mixed, _ = mix(constant, LABELS, SAMPLES, Mixing(mixup_alpha=1.0, cutmix_lambda=0.6), **KEY)
    torch.testing.assert_close(mixed.mean((1, 2)), target)
    assert images.shape == IMAGES.shape


def test_lambda_one_changes_nothing() -> None:
    assert not Mixing(cutmix_lambda=1.0)
    assert not Mixing(cutmix_lambda=1.0, cutmix_lambda_high=1.0)
    assert not Mixing(cutmix_lambda=0.3, cutmix_skip_probability=1.0)
    images, terms = mix(IMAGES, LABELS, SAMPLES, Mixing(), **KEY)
    assert torch.equal(images, IMAGES)
    assert terms is None


def test_skipped_batches_stay_unmixed() -> None:
    mixing = Mixing(cutmix_lambda=0.5, cutmix_skip_probability=0.3)
    unmixed = [mix(IMAGES, LABELS, SAMPLES, mixing, seed=0, epoch=0, update=u, slot=0)[1] is None for u in range(400)]
    assert 80 < sum(unmixed) < 160


def test_a_batch_has_cutmix_or_mixup_and_never_both() -> None:
    """With --mix-switch, each is exactly what it is alone."""
    cut = {"cutmix_lambda": 0.0, "cutmix_lambda_high": 1.0, "cutmix_skip_probability": 0.4}
    both, one, other = Mixing(mixup_alpha=0.2, mix_switch=True, **cut), Mixing(**cut), Mixing(mixup_alpha=0.2)
    cutmixed = 0
    for update in range(300):
        key = {"seed": 0, "epoch": 0, "update": update, "slot": 0}
        alone = mix(IMAGES, LABELS, SAMPLES, one, **key)
        expected = mix(IMAGES, LABELS, SAMPLES, other, **key) if alone[1] is None else alone
        cutmixed += alone[1] is not None
        images, terms = mix(IMAGES, LABELS, SAMPLES, both, **key)
        assert torch.equal(images, expected[0])
        assert terms is not None
        assert expected[1] is not None
        for (labels, weight), (same_labels, same_weight) in zip(terms, expected[1], strict=True):
            assert torch.equal(labels, same_labels)
            assert torch.equal(weight, same_weight)
    assert cutmixed / 300 == pytest.approx(0.6, abs=0.09)


@pytest.mark.parametrize("skip", [0.0, 0.5])
def test_exponential_draws(skip: float) -> None:
    mixing = Mixing(cutmix_lambda=0.85, cutmix_draw="exponential", cutmix_skip_probability=skip)
    drawn = torch.tensor([mixing.draw_lambda(0, update, 0) for update in range(4000)], dtype=torch.float64)
    off = (drawn == 1).double().mean().item()
    assert off == pytest.approx(skip + (1 - skip) * (1.55 * 0.85 - 0.96), abs=0.03)
    rest = drawn[drawn < 1]
    assert rest.min() >= 0
    floor = math.exp(-4)
    mean = 1 + (-1 - floor * (-4 - 1)) / (1 - floor) / 4
    assert rest.mean().item() == pytest.approx(mean, abs=0.02)


def test_uniform_range() -> None:
    mixing = Mixing(cutmix_lambda=0.2, cutmix_lambda_high=0.6)
    drawn = [mixing.draw_lambda(0, update, 1) for update in range(500)]
    assert min(drawn) >= 0.2
    assert max(drawn) < 0.6
    assert sum(drawn) / 500 == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 4.0])
def test_factors_follow_the_folded_beta_distribution(alpha: float) -> None:
    factors = mixup_factors(alpha, 0, 0, torch.arange(20_000)).double()
    assert factors.min() >= 0.5
    assert factors.max() <= 1
    reference = torch.distributions.Beta(alpha, alpha).sample((200_000,)).double()
    reference = torch.maximum(reference, 1 - reference)
    assert factors.mean().item() == pytest.approx(reference.mean().item(), abs=0.006)
    assert factors.std().item() == pytest.approx(reference.std().item(), abs=0.006)


def test_factors_belong_to_the_sample() -> None:
    whole = mixup_factors(0.2, 0, 1, torch.arange(10))
    assert torch.equal(whole[4:7], mixup_factors(0.2, 0, 1, torch.arange(4, 7)))


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1), st.integers(1, 40), st.integers(1, 40), st.floats(0, 0.999), st.floats(0, 0.999))
def test_boxes_stay_inside(kept: float, height: int, width: int, down: float, across: float) -> None:
    box = cut_box(kept, height, width, down, across)
    assert 0 <= box.top <= box.bottom <= height
    assert 0 <= box.left <= box.right <= width
    side = math.sqrt(1 - kept)
    assert abs((box.bottom - box.top) - height * side) <= 0.51
    assert box.share(height, width) == (box.bottom - box.top) * (box.right - box.left) / (height * width)


@pytest.mark.parametrize(
    ("mixing", "batch"),
    [(Mixing(mixup_alpha=0.2), 1), (Mixing(cutmix_lambda=0.5), 1), (Mixing(mixup_alpha=1, cutmix_lambda=0.5), 1)],
)
def test_small_batches_are_refused(mixing: Mixing, batch: int) -> None:
    with pytest.raises(UserError, match="micro-batch of at least"):
        mixing.check(batch)
    mixing.check(batch + 1)


def test_three_images_are_enough_for_mixup_and_cutmix() -> None:
    """The published EfficientNet-B4 has a micro-batch of 3: each picture holds exactly the shares that its labels say."""
    three = torch.eye(3).view(3, 1, 1, 3).expand(3, 8, 8, 3).contiguous()
    mixed, terms = mix(three, torch.arange(3), torch.arange(3), Mixing(mixup_alpha=1.0, cutmix_lambda=0.6), **KEY)
    assert terms is not None
    said = sum(torch.nn.functional.one_hot(labels, 3) * weight.view(-1, 1) for labels, weight in terms)
    torch.testing.assert_close(mixed.mean((1, 2)), said)
