"""A value that is not finite stops the run and says where it came from."""

import contextlib
from collections.abc import Iterator

from conveyor.errors import UserError
from conveyor.numerics import finite
from conveyor.training.session import Session
from conveyor.world.world import World


class NotFiniteError(UserError):
    """The loss became infinite or not a number."""


ADVICE = "lower --learning-rate, lengthen --warmup or set --clip-norm; earlier checkpoints are intact"


def check_finite(bad_slots: float, session: Session, rate: float) -> None:
    """Raise `NotFiniteError` on every worker when any slot of the update had a loss that is not finite."""
    if not bad_slots:
        return
    finding = session.lane.find_bad_layer(session.update, session.updater.loss_scale.value)
    cause = min(gathered(finding, session.world), default=None)
    where = f"; first not finite: {cause.phrase}" if cause is not None else ""
    raise NotFiniteError(f"the loss is not finite in {moment(session, rate)}{where}: {ADVICE}")


def check_weights(session: Session) -> None:
    """Raise `NotFiniteError` on every worker when the last update left weights or statistics that are not finite.

    Before a checkpoint is written: it would push a good one out of the run folder. And when a validation has no answers.
    """
    module = session.lane.module
    bad = finite.bad_weight([*module.named_parameters(), *module.named_buffers()])
    finding = None if bad is None else finite.Finding.weights(bad, session.world.stage)
    cause = min(gathered(finding, session.world), default=None)
    if cause is not None:
        rate = session.spec.schedule.rate(session.update - 1)
        raise NotFiniteError(
            f"{cause.phrase} are not finite after update {session.update} (epoch {session.epoch:.2f}, learning rate "
            f"{rate:.4g}): {ADVICE}"
        )


def gathered(finding: finite.Finding | None, world: World) -> list[finite.Finding]:
    """The findings of all workers, the same list on each."""
    told = world.of_all(None if finding is None else [finding.rank, finding.place, finding.phrase])
    return [finite.Finding(*one) for one in told if one is not None]


@contextlib.contextmanager
def watched(session: Session) -> Iterator[None]:
    """With `--fp-exceptions` every layer is looked at, and the first bad value stops the run at once."""
    if not session.spec.options.precision.fp_exceptions:
        yield
        return
    # An automatic loss scale lets gradients overflow now and then by design.
    gradients = not session.updater.loss_scale.dynamic
    try:
        with finite.watch(session.lane.module, gradients=gradients):
            yield
    except finite.NotFiniteValueError as found:
        rate = session.spec.schedule.rate(session.update)
        raise NotFiniteError(f"in {moment(session, rate)} {found}") from None


def moment(session: Session, rate: float) -> str:
    """`update 17 (epoch 0.38, learning rate 0.1)`: the update that is being computed."""
    return f"update {session.update + 1} (epoch {session.epoch:.2f}, learning rate {rate:.4g})"
