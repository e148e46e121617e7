"""The learning rate as a pure function of the update number (no torch here).

With u the update (from 0), q = `lr_every` in updates and t = floor(u / q) q, a schedule is

    rate(u) = peak * warm(t) * shape(s)

    constant     shape(s) = 1
    stepped      shape(s) = decay^n or values[n - 1], n = number of drops reached (s >= drop) or passed (s > drop, and
                 one drop in q updates at most)
    exponential  shape(s) = decay^floor(s / every)
    cosine       shape(s) = e + (1 - e) (1 + cos(pi min(s, D) / D)) / 2
    polynomial   shape(s) = e + (1 - e) (1 - min(s, D) / D)^power

For t < w (warm-up) the factor warm(t) is t / w (from-zero), (t + 1) / (w + 1) (from-first) or
(epoch + 1) / (warm-up epochs) (epochs). s is t when warm-up is a mask; when it shifts the schedule, s is 0 during
warm-up and t - w afterwards. D is the horizon; without one the shape ends with the run, so D is
the run's length, less the warm-up when that shifts.
"""

import dataclasses
import math
from fractions import Fraction

from conveyor.errors import UserError
from conveyor.options.optimizer import ScheduleOptions
from conveyor.options.units import Duration

DEFAULT_DECAY_EPOCHS = Fraction(12, 5)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A resolved schedule: every duration is a number of updates."""

    chosen: ScheduleOptions
    """Forms and factors; its durations stand here in updates."""
    peak: float
    every: Fraction
    """q: the rate changes only at multiples of this many updates."""
    drops: tuple[int, ...]
    factors: tuple[float, ...]
    """The share of the peak after each drop."""
    decay_every: Fraction
    horizon: Fraction
    warmup: int
    updates_per_epoch: int

    def rate(self, update: int) -> float:
        """The learning rate of update number `update`, counted from 0."""
        time = Fraction(update) if self.every == 1 else update // self.every * self.every
        warming = time < self.warmup
        counted = time
        if self.chosen.warmup_mode == "shift":
            counted = Fraction(0) if warming else time - self.warmup
        rate = self.peak * self.shape(counted)
        return rate * self._warm_factor(time) if warming else rate

    def shape(self, counted: Fraction) -> float:
        """The share of the peak at s = `counted` updates, without warm-up."""
        form, end = self.chosen.lr_schedule, self.chosen.lr_end
        if form == "stepped":
            late = self.chosen.lr_drop_form == "passed"
            passed = self._passed(counted) if late else sum(counted >= drop for drop in self.drops)
            return self.factors[passed - 1] if passed else 1.0
        if form == "exponential":
            return float(self.chosen.lr_decay ** (counted // self.decay_every))
        if form == "constant":
            return 1.0
        share = float(min(counted, self.horizon) / self.horizon) if self.horizon > 0 else 1.0
        if form == "cosine":
            return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * share))
        return end + (1 - end) * math.pow(1 - share, self.chosen.lr_power)

    def _passed(self, counted: Fraction) -> int:
        """Drops that were passed, of which a tick makes one at most: two drops in a tick take effect in two ticks."""
        now, offset = divmod(counted, self.every)
        count, tick = 0, -1
        for drop in self.drops:
            tick = max((drop - offset) // self.every + 1, tick + 1)
            count += now >= tick
        return count

    def _warm_factor(self, time: Fraction) -> float:
        if self.chosen.warmup_form == "from-first":
            return float((time + 1) / (self.warmup + 1))
        if self.chosen.warmup_form == "epochs":
            # With a warm-up that is no whole number of epochs the last, partial epoch would pass 1.
            return min(
                1.0, float((time // self.updates_per_epoch + 1) * self.updates_per_epoch / Fraction(self.warmup))
            )
        return float(time / self.warmup)


def make_schedule(
    chosen: ScheduleOptions,
    *,
    peak_lr: float,
    updates_per_epoch: int,
    updates_total: int,
    global_batch: int,
    warmup_updates: int | None = None,
) -> Schedule:
    """Turn the options' durations into updates; drops, warm-up and an explicit horizon are rounded down."""

    def updates(duration: Duration) -> Fraction:
        return duration.updates(
            updates_per_epoch=updates_per_epoch, updates_total=updates_total, global_batch=global_batch
        )

    def positive(duration: Duration, flag: str) -> Fraction:
        length = updates(duration)
        if length <= 0:
            raise UserError(f"{flag} {duration} is no time at all: give something longer than 0")
        return length

    warmup = int(updates(chosen.warmup)) if warmup_updates is None else warmup_updates
    if chosen.lr_horizon is not None:
        horizon = Fraction(int(updates(chosen.lr_horizon)))
    else:
        horizon = Fraction(updates_total - (warmup if chosen.warmup_mode == "shift" else 0))
    drops, factors = _steps(chosen, tuple(int(updates(drop)) for drop in chosen.lr_drops))
    return Schedule(
        chosen=chosen,
        peak=peak_lr,
        every=positive(chosen.lr_every, "--lr-every"),
        drops=drops,
        factors=factors,
        decay_every=(
            DEFAULT_DECAY_EPOCHS * updates_per_epoch
            if chosen.lr_decay_every is None
            else positive(chosen.lr_decay_every, "--lr-decay-every")
        ),
        horizon=horizon,
        warmup=warmup,
        updates_per_epoch=updates_per_epoch,
    )


def _steps(chosen: ScheduleOptions, drops: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The drops in order of time and the share of the peak that holds after each."""
    if chosen.lr_values and len(chosen.lr_values) != len(drops):
        raise UserError(
            f"--lr-values has {len(chosen.lr_values)} factors for {len(drops)} --lr-drops: "
            "give one factor for each drop (the rate before the first drop is the peak)"
        )
    if list(drops) != sorted(drops):
        raise UserError(f"--lr-drops {' '.join(map(str, chosen.lr_drops))} are not in order of time: sort them")
    factors = chosen.lr_values or tuple(chosen.lr_decay**number for number in range(1, len(drops) + 1))
    return drops, factors
