"""Schedules against their formulas, written out by hand."""

import math
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.errors import UserError
from conveyor.optim.schedule import Schedule, make_schedule
from conveyor.options.optimizer import ScheduleOptions
from conveyor.options.units import Duration


def duration(text: str) -> Duration:
    return Duration.parse(text)


def schedule(
    *, peak: float = 1.0, per_epoch: int = 10, total: int = 100, batch: int = 32, warmup: int = 0, **chosen: Any
) -> Schedule:
    for name in ("lr_every", "lr_horizon", "lr_decay_every"):
        if isinstance(chosen.get(name), str):
            chosen[name] = duration(chosen[name])
    if "lr_drops" in chosen:
        chosen["lr_drops"] = tuple(duration(text) for text in chosen["lr_drops"].split())
    return make_schedule(
        ScheduleOptions(**chosen),
        peak_lr=peak,
        updates_per_epoch=per_epoch,
        updates_total=total,
        global_batch=batch,
        warmup_updates=warmup,
    )


def rates(made: Schedule, stop: int = 100) -> list[float]:
    return [made.rate(update) for update in range(stop)]


def test_constant() -> None:
    assert rates(schedule(lr_schedule="constant", peak=0.25)) == [0.25] * 100


def test_cosine_against_formula() -> None:
    made = schedule(lr_schedule="cosine", peak=0.4)
    assert rates(made) == pytest.approx([0.2 * (1 + math.cos(math.pi * u / 100)) for u in range(100)], abs=1e-12)
    assert made.rate(100) == pytest.approx(0, abs=1e-15)
    assert made.rate(400) == pytest.approx(0, abs=1e-15)


def test_cosine_with_horizon_stays_at_its_end() -> None:
    made = schedule(lr_schedule="cosine", lr_horizon="3.57ep", lr_end=0.1)
    assert made.horizon == 35
    assert made.rate(35) == made.rate(99) == pytest.approx(0.1)
    assert made.rate(7) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.2)))


def test_stepped_holds_up_to_and_including_the_boundary() -> None:
    """Keras' piecewise constant decay: value i is used while u <= boundary i."""
    made = schedule(lr_schedule="stepped", lr_drops="2ep 5ep", lr_values=(0.3, 0.05), lr_drop_form="passed")
    assert [made.rate(u) for u in (0, 20, 21, 50, 51, 99)] == pytest.approx([1, 1, 0.3, 0.3, 0.05, 0.05])


def test_stepped_by_whole_epochs() -> None:
    """The rate changes when the listed epoch is completed."""
    made = schedule(lr_schedule="stepped", lr_drops="2ep 5ep", lr_decay=0.5, lr_every="1ep")
    assert [made.rate(u) for u in (0, 19, 20, 49, 50)] == [1, 1, 0.5, 0.5, 0.25]


def test_stepped_fractions_with_warm_up_at_host_steps() -> None:
    """The original TensorFlow 1 program: factor u / w below w, a drop as soon as u > int(f T), at host steps of 8."""
    made = schedule(
        lr_schedule="stepped", lr_drops="30% 60%", lr_drop_form="passed", lr_every="8up", warmup=20, peak=2.0
    )
    assert [made.rate(u) for u in (0, 7, 8, 16, 23, 24)] == pytest.approx([0, 0, 2 * 8 / 20, 2 * 0.8, 2 * 0.8, 2])
    assert [made.rate(u) for u in (31, 32, 63, 64)] == pytest.approx([2, 0.2, 0.2, 0.02])


def test_a_host_step_makes_one_drop_at_most() -> None:
    made = schedule(lr_schedule="stepped", lr_drops="30% 34% 60%", lr_drop_form="passed", lr_every="20up")
    assert [made.rate(u) for u in (39, 40, 59, 60, 79, 80)] == pytest.approx([1, 0.1, 0.1, 0.01, 0.01, 1e-3])
    shifted = schedule(
        lr_schedule="stepped", lr_drops="20%", lr_drop_form="passed", lr_every="10up", warmup=3, warmup_mode="shift"
    )
    assert [shifted.rate(u) for u in (29, 30)] == pytest.approx([1, 0.1])


def test_cosine_warm_up_mask_from_zero() -> None:
    made = schedule(lr_schedule="cosine", warmup=10)
    expected = [0.5 * (1 + math.cos(math.pi * u / 100)) * min(1, u / 10) for u in range(100)]
    assert rates(made) == pytest.approx(expected)


def test_exponential_drops_evenly() -> None:
    made = schedule(lr_schedule="exponential", lr_decay=0.97, per_epoch=1251, total=350 * 1251)
    assert made.decay_every == Fraction(12, 5) * 1251
    first = math.ceil(2.4 * 1251)
    assert made.rate(first - 1) == 1
    assert made.rate(first) == pytest.approx(0.97)
    assert made.rate(350 * 1251 - 1) == pytest.approx(0.97**145)


def test_exponential_clock_of_several_ticks_per_epoch() -> None:
    made = schedule(lr_schedule="exponential", lr_decay=0.9, lr_decay_every="1/4ep", lr_every="1/4ep", per_epoch=10)
    assert [made.rate(u) for u in (0, 2, 3, 5, 8, 10)] == pytest.approx([1, 1, 0.9, 0.81, 0.9**3, 0.9**4])


def test_polynomial_after_warm_up() -> None:
    """u <= w: L u / w; then (L - E)(1 - (u - w)/(T - w))^p + E."""
    peak, end, w, total = 3.0, 3.0 * 1e-2, 20, 100
    made = schedule(lr_schedule="polynomial", peak=peak, lr_end=1e-2, warmup=w, warmup_mode="shift")
    expected = [
        peak * u / w if u <= w else (peak - end) * (1 - (u - w) / (total - w)) ** 2 + end for u in range(total + 1)
    ]
    assert rates(made, total + 1) == pytest.approx(expected)


def test_polynomial_with_horizon_and_power() -> None:
    made = schedule(lr_schedule="polynomial", lr_power=1.0, lr_horizon="5ep", lr_end=0.5)
    assert [made.rate(u) for u in (0, 25, 50, 80)] == pytest.approx([1, 0.75, 0.5, 0.5])


def test_warm_up_shift_values() -> None:
    """Nine warm-up updates: 1/10, 2/10, ... then the schedule from its start."""
    made = schedule(lr_schedule="cosine", lr_horizon="100up", warmup=9, warmup_mode="shift", warmup_form="from-first")
    assert rates(made, 9) == pytest.approx([u / 10 for u in range(1, 10)])
    plain = schedule(lr_schedule="cosine", lr_horizon="100up")
    assert [made.rate(u + 9) for u in range(120)] == rates(plain, 120)


def test_warm_up_mask_from_first() -> None:
    made = schedule(lr_schedule="cosine", warmup=9, warmup_form="from-first")
    plain = rates(schedule(lr_schedule="cosine"))
    assert rates(made) == pytest.approx([rate * (min(1, (u + 1) / 10)) for u, rate in enumerate(plain)])


def test_warm_up_by_epochs() -> None:
    """lr (k + 1) / warm-up for epoch index k below warm-up."""
    made = schedule(lr_schedule="constant", warmup=40, warmup_form="epochs")
    assert [made.rate(u) for u in (0, 9, 10, 35, 39, 40)] == pytest.approx([0.25, 0.25, 0.5, 1, 1, 1])


def test_staircase_is_outermost() -> None:
    smooth = schedule(lr_schedule="cosine", warmup=15, warmup_form="from-first")
    stairs = schedule(lr_schedule="cosine", warmup=15, warmup_form="from-first", lr_every="1ep")
    assert rates(stairs) == [smooth.rate(u // 10 * 10) for u in range(100)]


def test_warm_up_from_the_options() -> None:
    made = make_schedule(
        ScheduleOptions(warmup=duration("0.55ep")), peak_lr=1, updates_per_epoch=10, updates_total=99, global_batch=8
    )
    assert made.warmup == 5


def test_images_as_unit() -> None:
    assert schedule(lr_schedule="stepped", lr_drops="640img", batch=32).drops == (20,)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"lr_drops": "1ep 2ep", "lr_values": (0.1,)}, "one factor for each drop"),
        ({"lr_drops": "2ep 1ep"}, "sort them"),
        ({"lr_every": "0up"}, "longer than 0"),
        ({"lr_schedule": "exponential", "lr_decay_every": "0ep"}, "--lr-decay-every"),
    ],
)
def test_mistakes_are_explained(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        schedule(**chosen)


@settings(max_examples=50, deadline=None)
@given(
    form=st.sampled_from(["constant", "stepped", "cosine", "exponential", "polynomial"]),
    warmup=st.integers(0, 120),
    mode=st.sampled_from(["mask", "shift"]),
    warm_form=st.sampled_from(["from-zero", "from-first", "epochs"]),
    every=st.sampled_from(["1up", "7up", "1ep", "1/3ep", "10%"]),
    update=st.integers(0, 300),
)
def test_rate_stays_between_zero_and_peak(
    form: str, warmup: int, mode: str, warm_form: str, every: str, update: int
) -> None:
    made = schedule(
        lr_schedule=form, lr_drops="3ep 6ep", warmup=warmup, warmup_mode=mode, warmup_form=warm_form, lr_every=every
    )
    rate = made.rate(update)
    assert isinstance(rate, float)
    assert 0 <= rate <= 1
    assert made.rate(update) == rate


def test_needs_no_torch() -> None:
    code = "import sys, conveyor.optim.schedule; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
