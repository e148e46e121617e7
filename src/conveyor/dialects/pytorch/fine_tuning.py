"""PyTorch's second phase: after training at half resolution, some epochs at the full one.

It begins with the averaged weights of the first phase and trains the last layers alone: plain SGD, a cosine rate whose
horizon is the length of the first phase, images cut as in validation, no mixing; the norms before the first trained
layer keep their statistics.
"""

import copy
import dataclasses
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from conveyor.data import catalogue
from conveyor.data.subject import completed_subject
from conveyor.dialects.reader import Values
from conveyor.dialects.translation import Translation
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.options.units import Duration
from conveyor.topology import exact

OPTIONS = ("epoch", "lr", "micro_batch_size", "gradient_accumulation", "first_trainable_layer")
FOLDER = "fine-tune"
"""The second phase's run folder, inside that of the first."""


def with_second_phase(first: Translation, values: Values, translate: Callable[[Values], Translation]) -> Translation:
    """The run with the phase that follows it, if one is asked for; `translate` reads its values like the first's."""
    given = [key for name in OPTIONS if values.has(key := f"fine_tune_{name}")]
    epochs = values["fine_tune_epoch"]
    if not values["half_res_training"] or not epochs:
        needed = "--half-res-training" if not values["half_res_training"] else "--fine-tune-epoch above 0"
        told = [f"{values.spelling(key)} has no effect without {needed}" for key in given if values[key]]
        return dataclasses.replace(first, notes=(*first.notes, *told))
    folder = first.options.run.run_dir
    if folder is None or not first.options.events.checkpoints_per_epoch:
        raise UserError(
            "--fine-tune-epoch needs --checkpoint-output-dir: the second phase begins with weights that the first one saves"
        )
    second = translate(_values(values)).options
    length = {} if "updates" in values.own else {"epochs": float(epochs)}
    second = second.replace(
        **length,
        lr_horizon=Duration(exact(first.options.length.epochs or Fraction(values["epoch"])), "ep"),
        train_crop="centre",
        flip="none",
        weights=str(_weights(first.options, Path(folder))),
        run_dir=str(Path(folder) / FOLDER),
    )
    layer = values["fine_tune_first_trainable_layer"]
    if layer:
        second = second.replace(train_only=_from_layer(second, layer), frozen_norms=True)
    return dataclasses.replace(first, then=second)


def _values(values: Values) -> Values:
    """The values of the second phase."""
    second = copy.copy(values)
    second.own = {
        key: value for key, value in values.own.items() if key not in ("epochs", "learning_rate", "accumulation")
    }
    second.given = values.given | {
        "half_res_training": False,
        "use_bbox_info": False,
        "mixup_alpha": 0.0,
        "cutmix_lambda_low": 0.0,
        "cutmix_lambda_high": 0.0,
        "optimizer": "sgd",
        "momentum": 0.0,
        "warmup_epoch": 0,
        "lr": values["fine_tune_lr"],
        "lr_schedule": "cosine",
        "lr_scheduler_freq": 0.0,
        "batch_size": values["fine_tune_micro_batch_size"],
        "gradient_accumulation": values["fine_tune_gradient_accumulation"],
        "weight_avg_strategy": "none",
    }
    return second


def _weights(options: Options, folder: Path) -> Path:
    """What the second phase begins with: the average, or the newest checkpoint where none is made."""
    from conveyor.checkpoint import store

    events = options.events
    names = [f"last-{epochs}" for epochs in events.average_last]
    names += [f"exponential-{decay:g}" for decay in events.average_decay]
    return folder / store.CHECKPOINTS / f"{store.AVERAGED}{names[0]}" if names else folder


def _from_layer(options: Options, layer: str) -> list[str]:
    """`--train-only` for all parameters from the first one of `layer` on, as short as possible."""
    from conveyor.dialects.layer_names import names_in
    from conveyor.training import build_model

    options, about, _ = completed_subject(options, catalogue.info(options.data))
    model = build_model.outline(options, about)
    wanted = layer.strip("/").replace("/", ".")
    path = dict(names_in(model, options.run.log_style)).get(wanted, wanted)
    names = [name for name, _ in model.named_parameters()]
    first = next((index for index, name in enumerate(names) if f"{name}.".startswith(f"{path}.")), None)
    if first is None:
        first = next((index for index, name in enumerate(names) if name.startswith(path)), None)
    if first is None:
        tops = dict.fromkeys(name.partition(".")[0] for name in names)
        raise UserError(
            f"--fine-tune-first-trainable-layer {layer}: no parameter begins so (there are {', '.join(tops)})"
        )
    frozen = names[:first]
    found: dict[str, None] = {}
    for name in names[first:]:
        parts = name.split(".")
        begins = (".".join(parts[:count]) + "." for count in range(1, len(parts)))
        found[next((one for one in begins if not any(other.startswith(one) for other in frozen)), name)] = None
    return [f"^{one}" for one in found]
