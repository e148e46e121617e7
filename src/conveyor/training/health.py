"""A loss that is not finite stops the run and says where it came from."""

from conveyor.errors import UserError
from conveyor.training.session import Session


class NotFiniteError(UserError):
    """The loss became infinite or not a number."""


def check_finite(bad_slots: float, session: Session, rate: float) -> None:
    """Raise `NotFiniteError` on every worker when any slot of the update had a loss that is not finite."""
    if not bad_slots:
        return
    layer = bad_layer(session)
    where = f"; the first values that are not finite come out of {layer}" if layer else ""
    raise NotFiniteError(
        f"the loss is not finite in update {session.update + 1} (epoch {session.epoch:.2f}, learning rate {rate:.4g}){where}: "
        "lower --learning-rate, lengthen --warmup or set --clip-norm; earlier checkpoints are intact"
    )


def bad_layer(session: Session) -> str | None:
    """The first layer with an output that is not finite, by running the update's batches once more."""
    from conveyor.numerics import finite

    find = getattr(session.lane, "find_bad_layer", None)
    return find(finite) if find is not None else None
