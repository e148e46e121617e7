"""The largest micro-batch that fits into memory, and the fastest one, from short training runs in processes of their own.

Peak memory grows with the micro-batch B as fixed + per_image x B: a line through the measured peaks says which B fills
the memory, and one more run at that B says whether it does. No torch here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import linear_regression

from conveyor.errors import UserError
from conveyor.options import Options, specs
from conveyor.plan.short_run import short_run

UPDATES = 4
"""Of one run; the first chooses kernels and is not timed."""
SECTIONS = ("model", "data", "precision", "optimizer")
"""Options that decide what an image costs; batches, layout and events are this command's own."""


@dataclass(frozen=True, slots=True)
class Size:
    """What one micro-batch takes."""

    batch: int
    mib: float
    """Peak memory of the worker: resident on a CPU, allocated on a GPU."""
    rate: float
    """Images per second of one worker."""


@dataclass(frozen=True, slots=True)
class Found:
    sizes: list[Size]
    fixed: float
    """MiB without any image."""
    per_image: float
    """MiB of each further image."""
    largest: int
    """The largest that was run and stayed within the limit."""
    capped: bool
    """Whether the largest size that was allowed came before the end of the memory."""

    @property
    def fastest(self) -> Size:
        return max(self.sizes, key=lambda one: one.rate)


def find(options: Options, limit: float, sizes: Sequence[int], most: int, say: Callable[[str], None]) -> Found:
    """Measure `sizes`, then the largest micro-batch up to `most` that `limit` MiB of memory hold."""
    measured: list[Size] = []

    def measure(batch: int) -> Size | None:
        one = _measured(options, batch)
        if one is None:
            say(f"{batch:>11}  did not fit")
        else:
            measured.append(one)
            say(f"{batch:>11}  {one.mib:>8.0f}  {one.rate:>8.1f}")
        return one

    say(f"{'micro-batch':>11}  {'MiB':>8}  {'images/s':>8}")
    for batch in sizes:
        if measure(batch) is None:
            break
    if len(measured) < 2:
        raise UserError("fewer than two micro-batches fit into memory: give smaller --sizes, or a smaller model")
    per_image, fixed = linear_regression([one.batch for one in measured], [one.mib for one in measured])
    fitting = int((limit - fixed) / per_image) if per_image > 0 else most
    batch = min(most, max(1, fitting))
    while batch not in [one.batch for one in measured]:
        checked = measure(batch)
        if checked is not None and checked.mib <= limit:
            break
        batch = batch * 9 // 10 or 1
    measured.sort(key=lambda one: one.batch)
    return Found(measured, fixed, per_image, batch, capped=fitting > most)


def _measured(options: Options, batch: int) -> Size | None:
    """A run of a few updates on images that are made up; none if its memory did not suffice."""
    kept = {name: value for name, value in options.changed().items() if specs()[name].section in SECTIONS}
    run = Options().updated(kept).replace(
        synthetic_data=True, task="one-label", micro_batch_size=batch, layout="1x1", threads=options.layout.threads, device_ids=options.layout.device_ids[:1],
        device=options.layout.device, recompute=options.batch.recompute, bn_span=1, average_last=(), updates=UPDATES,
        updates_per_epoch=UPDATES,
    )  # fmt: skip
    found = short_run(run)
    if found.code == 0 and len(found.rows) > 1:
        return Size(batch, found.memory, found.rate)
    if found.code < 0 or any(word in found.output.lower() for word in ("memory", "kill")):
        return None
    raise UserError(f"a run with micro-batch {batch} failed: {found.last_line}")
