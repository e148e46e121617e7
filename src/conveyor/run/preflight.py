"""What a run refuses when it starts, found before it does: names of parameters and layers, weights that do not fit.

Torch is imported only where there is something to look up in the model.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from conveyor.errors import UserError, nearest
from conveyor.optim.kinds import KINDS, excluded
from conveyor.options import Options, specs
from conveyor.options.units import rate_factor
from conveyor.spec import RunSpec

if TYPE_CHECKING:
    from torch import nn


def check_start(spec: RunSpec, named: Collection[str] = ()) -> None:
    """Refuse what the run would refuse when it starts. `named` are the options that the user gave, see `check_names`."""
    options = spec.options
    run, batch = options.run, options.batch
    folder = run.run_dir
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise UserError(f"cannot write to the run folder {folder} (File exists): choose another --run-dir")
    if ":" in options.optimizer.optimizer:
        from conveyor.optim.foreign import optimizer_class

        optimizer_class(options.optimizer.optimizer)
    stages = spec.topology.stages  # any network can be cut in two
    filtered = stages > 1 and bool(batch.split_include or batch.split_exclude)
    cut = batch.splits not in ((), ("auto",)) or spec.layout.depth > 1 or filtered or stages > 2
    begins = options.model.weights is not None or run.checkpoint_path is not None or run.resume == "auto"
    if not (cut or begins or _asked(options, named)):
        return
    from conveyor.training import build_model

    model = build_model.outline(spec.options, spec.subject)
    check_names(spec, named, model)
    if cut:
        build_model.check_splits(model, spec)
    if begins:
        _check_weights(model, spec)


def check_names(spec: RunSpec, named: Collection[str], model: "nn.Module | None" = None) -> None:
    """Refuse a part of a name that no parameter has, in one of the options `named`: those that the user gave.

    A kind (norm, bias, 1d) may be absent from a model, and a shipped configuration may be used with another model than
    its own: `unused_names` has a note for these.
    """
    asked = _asked(spec.options, named)
    if not asked:
        return
    if model is None:
        from conveyor.training import build_model

        model = build_model.outline(spec.options, spec.subject)
    parameters = dict(model.named_parameters())
    for flag, pattern in asked:
        if excluded(parameters.items(), (pattern,)):
            continue
        layers = dict.fromkeys(part for name in parameters for part in name.split(".")[:-1] if not part.isdecimal())
        close = nearest(pattern.removeprefix("^"), [*KINDS, *layers, *parameters])
        cure = f"did you mean {' or '.join(close[:2])}?" if close else f"it has {', '.join([*layers][:12])}"
        raise UserError(f"{flag} {pattern}: no parameter of {spec.subject.name} has that in its name ({cure})")


def unused_names(model: "nn.Module", spec: RunSpec) -> list[str]:
    """A note for each name in the options that means no parameter of the model."""
    parameters = dict(model.named_parameters())
    return [
        f"{flag} {pattern} means no parameter of {spec.subject.name}: it has no effect"
        for flag, pattern in _patterns(spec.options)
        if not excluded(parameters.items(), (pattern,))
    ]


def _asked(options: Options, named: Collection[str]) -> list[tuple[str, str]]:
    """(flag, part of a name) that must mean something."""
    flags = {specs()[name].flag for name in named if name in specs()}
    return [(flag, pattern) for flag, pattern in _patterns(options) if flag in flags and pattern not in KINDS]


def _patterns(options: Options) -> Iterator[tuple[str, str]]:
    """(flag, kind or part of a name) of all options that choose parameters and are used."""
    optimizer = options.optimizer
    for pattern in optimizer.decay_exclude:
        yield "--decay-exclude", pattern
    if optimizer.optimizer == "lars" and optimizer.lars_exclude != specs()["lars_exclude"].default:
        for pattern in optimizer.lars_exclude:
            yield "--lars-exclude", pattern
    for pattern in optimizer.train_only:
        yield "--train-only", pattern
    for pair in options.schedule.lr_factors:
        yield "--lr-factors", rate_factor(pair)[0]


def _check_weights(model: "nn.Module", spec: RunSpec) -> None:
    """The weights or the checkpoint that the run begins with: there, readable, and of this model."""
    from conveyor.run.start import check_fits, saved_state
    from conveyor.training.load_weights import load_into, start_weights

    options, folder = spec.options, spec.options.run.run_dir
    state = saved_state(spec, None if folder is None else Path(folder)) if options.events.training else None
    if state is not None:
        check_fits(state, spec)
        load_into(model, {name: tensor.to("meta") for name, tensor in state.model.items()}, "the checkpoint")
    elif options.model.weights is not None and (options.events.training or options.run.checkpoint_path is None):
        start_weights(model, options.model, outline=True)
