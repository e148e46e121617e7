"""Averages of saved checkpoints: the mean of the last ones, or exponential over all, in float64, in the original types."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from conveyor.checkpoint import folder as one
from conveyor.checkpoint import store
from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.files import make_parent
from conveyor.optim import average
from conveyor.options.units import many
from conveyor.spec import RunSpec


def average_checkpoints(paths: Sequence[Path], *, decay: float | None = None) -> State:
    """The average of the checkpoints' weights, oldest first; `decay` makes it exponential. Only weights are kept."""
    used: list[State] = []
    names: list[str] = []

    def weights() -> Iterator[dict[str, Tensor]]:
        for path, state in store.readable(paths):
            names.append(path.name)
            used[:] = [state]
            yield state.model

    model = average.average(weights(), decay)
    (last,) = used
    return State(model=model, progress={**last.progress, "averaged": names, "decay": decay}, options=last.options)


def average_after_training(folder: Path, spec: RunSpec) -> None:
    """The averages that `--average-last` and `--average-decay` ask for, saved beside the checkpoints."""
    numbered = store.numbered(folder)
    for epochs in spec.options.events.average_last:
        newest = int(numbered[-1].name) if numbered else 0
        first = newest - epochs * spec.length.updates_per_epoch
        chosen = [path for path in numbered if int(path.name) > first]
        save_average(folder, f"last-{epochs}", average_checkpoints(chosen))
    for decay in spec.options.events.average_decay:
        save_average(folder, f"exponential-{decay:g}", average_checkpoints(numbered, decay=decay))


def save_average(folder: Path, name: str, state: State) -> Path:
    """Save an average as `checkpoints/average-NAME` of a run."""
    return one.save(folder / store.CHECKPOINTS / f"{store.AVERAGED}{name}", state)


def average_folder(
    path: Path,
    *,
    decay: float | None,
    last: int | None = None,
    discard_last: bool = False,
    output: Path | None = None,
    statistics_batches: int | None = None,
) -> tuple[Path, list[str]]:
    """Average the checkpoints of a run or folder; (where it was written, the names that went in)."""
    found = store.locate(path)
    chosen = [entry for entry in found.checkpoints if store.is_numbered(entry)]
    if discard_last:
        chosen = chosen[:-1]
    if last is not None:
        if last > len(chosen):
            raise UserError(f"{path} has {many(len(chosen), 'checkpoint')}, and the last {last} are asked for")
        chosen = chosen[-last:]
    if not chosen:
        raise UserError(f"there is no checkpoint to average in {path}")
    state = average_checkpoints(chosen, decay=decay)
    if statistics_batches is not None:
        from conveyor.run.recalibrate_norms import recompute_statistics

        state.model = recompute_statistics(state, statistics_batches)
    name = f"{store.AVERAGED}last-{len(chosen)}" if decay is None else f"{store.AVERAGED}exponential-{decay:g}"
    target = output or chosen[-1].parent / name
    try:
        make_parent(target)
        written = one.save(target, state)
    except OSError as problem:
        raise UserError(f"cannot write the average to {target}: {problem.strerror}; choose another --output") from None
    return written, list(state.progress["averaged"])
