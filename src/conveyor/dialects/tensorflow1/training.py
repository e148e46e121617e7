"""TensorFlow 1: the update rule, the length, the rate over time and the events of a run."""

import math
from fractions import Fraction
from pathlib import Path

from conveyor.data import catalogue as data_catalogue
from conveyor.dialects.tensorflow1 import models
from conveyor.dialects.translation import Draft, exponent_rate
from conveyor.dialects.values import fractions
from conveyor.errors import UserError
from conveyor.options import Options, find
from conveyor.options.units import Duration
from conveyor.topology import exact
from conveyor.version import __version__


def optimizer(draft: Draft, family: str, dataset: str, defaults: models.Defaults, column: int) -> None:
    values = draft.values
    rule = values["optimiser"]
    draft.set(optimizer={"SGD": "sgd", "momentum": "momentum", "RMSprop": "rmsprop", "LARS": "lars"}[rule])
    draft.set(momentum=values["momentum"] if rule != "SGD" else None)
    decay = values["weight_decay"]
    if decay is None:
        decay = 0.0 if rule == "LARS" else defaults.weight_decay[column]
    draft.set(
        l2_regularization=decay, decay_exclude=["norm"] if dataset == "imagenet" or family == "efficientnet" else None
    )
    if rule == "RMSprop":
        draft.set(optimizer_epsilon=values["rmsprop_epsilon"], rmsprop_form="tensorflow")
        exponent = values["rmsprop_base_decay_exp"]
        if exponent is None and family == "efficientnet":
            exponent = -14.0
        if values["rmsprop_decay"] is not None:
            draft.set(rmsprop_decay=values["rmsprop_decay"])
        elif exponent is not None:
            draft.set(rmsprop_decay_per_sample=exponent_rate(exponent))
    if rule == "LARS":
        draft.set(optimizer_epsilon=values["lars_epsilon"], lars_eta=values["lars_eeta"], momentum_form="rate")
        own = values["lars_weight_decay"]
        draft.set(weight_decay=own if own is not None else decay)
        kinds = {"beta": "norm", "gamma": "norm"}
        draft.set(lars_exclude=list(dict.fromkeys(kinds.get(word, word) for word in values["lars_skip_list"])))
    smoothing = values["label_smoothing"]
    smoothing = smoothing if smoothing is not None else defaults.label_smoothing[column]
    if not 0 <= smoothing < 1:
        raise UserError(f"--label-smoothing {smoothing:g}: give a number from 0 to below 1")
    draft.set(label_smoothing=smoothing, smoothing_form="others" if smoothing else None)


def images(draft: Draft) -> int:
    """Training images of the run, as its periods are computed from them."""
    known = {**draft.flat, **draft.values.own}
    chosen = {name: value for name, value in known.items() if find(name).section == "data"}
    return data_catalogue.info(Options().updated(chosen).data).train_images


def length(draft: Draft, default_epochs: int) -> Fraction:
    """Set the end of the run; the epochs that it is meant to last, 0 if only its updates are given."""
    values = draft.values
    updates, epochs = values["iterations"], values["epochs"]
    if epochs is not None and epochs <= 0:
        raise UserError(f"--epochs {epochs:g}: give a number above 0")
    if updates is None:
        wanted = exact(epochs if epochs is not None else default_epochs)
        draft.set(epochs=float(wanted), epochs_by_images=True)
        return wanted
    draft.set(updates=updates)
    if epochs is not None and "epochs" in values.given:
        draft.note("--iterations and --epochs are both given: --iterations holds")
    if epochs is None:
        return Fraction(0)
    return exact(epochs)


def schedule(draft: Draft, defaults: models.Defaults, dataset: str, epochs: Fraction, global_batch: int) -> None:
    values = draft.values
    if values["abs_learning_rate"]:
        rate, peak = values["abs_learning_rate"], values["abs_learning_rate"]
        draft.set(learning_rate=rate)
    else:
        exponent = values["base_learning_rate"]
        if not exponent:
            exponent = defaults.exponents[values["optimiser"]] if dataset == "imagenet" else models.CIFAR_EXPONENT
        rate = exponent_rate(exponent)
        peak = rate * global_batch
        draft.set(learning_rate=rate, lr_reference_batch=1)
    if "learning_rate" in values.own:
        peak = draft.options().schedule.learning_rate
    if peak < 0:
        raise UserError(f"the learning rate {peak:g} is negative: give a positive one")
    kind = values["lr_schedule"]
    if kind == "stepped":
        drops = values["learning_rate_schedule"] or ("0.3,0.6,0.8,0.9" if dataset == "imagenet" else "0.5,0.75")
        draft.set(lr_schedule="stepped", lr_drops=_percentages(drops), lr_decay=values["learning_rate_decay"])
        draft.set(lr_drop_form="passed")
    elif kind == "cosine":
        draft.set(lr_schedule="cosine")
    elif kind == "exponential":
        every = Duration(Fraction(100, values["lr_drops"]), "%")
        draft.set(lr_schedule="exponential", lr_decay=values["lr_decay_rate"], lr_decay_every=every)
    else:
        end = values["abs_end_learning_rate"]
        draft.set(lr_schedule="polynomial", lr_power=values["poly_lr_decay_power"], warmup_mode="shift")
        draft.set(lr_end=end / peak if end is not None else values["poly_lr_end_ratio"])
    warmup = exact(values["warmup_epochs"])
    if epochs == 0 and warmup:
        draft.note("--iterations without --epochs: no warm-up")
        warmup = Fraction(0)
    if warmup and values["iterations"] is not None:
        draft.set(warmup=Duration(100 * warmup / epochs, "%"))
    elif warmup:
        draft.set(warmup=Duration(warmup, "ep"))


def _percentages(text: str) -> list[Duration]:
    """`0.3,0.6` -> 30 % and 60 % of the run."""
    flag, hint = "--learning-rate-schedule", "fractions of the run"
    parts = fractions(flag, text, hint)
    if not all(0 <= part <= 1 for part in parts):
        raise UserError(f"{flag} {text}: give {hint} separated by commas, such as 0.5,0.75")
    return [Duration(100 * part, "%") for part in parts]


def events(draft: Draft, images: int, global_batch: int, epochs: Fraction) -> None:
    """Log every `(N // G) // logs` updates, save every `(N // G) // checkpoints`; the host step divides the log period."""
    values = draft.values
    per_epoch = images // global_batch
    saves = values["ckpts_per_epoch"]
    if values["epochs_per_ckpt"] and values.has("ckpts_per_epoch") and saves:
        raise UserError("--ckpts-per-epoch and --epochs-per-ckpt exclude each other: give one of them")
    frequency = Fraction(1, values["epochs_per_ckpt"]) if values["epochs_per_ckpt"] else Fraction(saves)
    if values.has("epochs_per_ckpt") and not values["epochs_per_ckpt"] and not values.has("ckpts_per_epoch"):
        frequency = Fraction(0)
    draft.set(checkpoints_per_epoch=str(frequency))
    if frequency:
        draft.set(checkpoint_at_start=True, first_checkpoint_epoch=values["ckpt_epochs_offset"] or None)
    uneven = per_epoch % frequency if frequency > 1 else (epochs * frequency).denominator != 1
    if per_epoch >= 1 and frequency and uneven:
        draft.set(updates_per_checkpoint=max(1, math.floor(per_epoch / frequency)))
    draft.set(validation=values["validation"], validation_mode="after")
    if values["weight_avg_N"]:
        draft.set(average_last=values["weight_avg_N"])
    if values["weight_avg_exp"]:
        draft.set(average_decay=values["weight_avg_exp"])
    if (values["weight_avg_N"] or values["weight_avg_exp"]) and not frequency:
        raise UserError("averaging weights needs checkpoints: set --ckpts-per-epoch to at least 1")
    if values["iterations"] is not None:
        period = values["log_freq"]
        draft.set(updates_per_log=period)
    else:
        logs = values["logs_per_epoch"]
        period = max(1, per_epoch // logs)
        if per_epoch >= 1 and per_epoch % logs == 0:
            draft.set(logs_per_epoch=logs)
        else:
            draft.set(updates_per_log=period)
    step = host_step(period, values["batches_per_step"])
    save = max(1, math.floor(per_epoch / frequency)) if frequency else 0
    if step != math.gcd(period, save):
        draft.set(updates_per_call=step)


def host_step(period: int, batches_per_step: int) -> int:
    """Updates between two returns to the host: the log period, cut into equal steps of about `batches_per_step`."""
    return period if period < batches_per_step else period // round(period / batches_per_step)


def run_folder(draft: Draft) -> str:
    """Where the run goes: a name with model, batch, norm and precision, as people search their logs for them."""
    values, flat = draft.values, draft.flat
    if values["logs_path"]:
        return str(values["logs_path"])
    family, name = str(values["model"]), str(flat["model"])
    short = {"resnet": "RN", "resnext": "RNX", "efficientnet": "EfficientNet-"}.get(family, "SN")
    size = "".join(ch for ch in name if ch.isdecimal()) if family != "efficientnet" else name.split("_")[1].upper()
    batch = draft.options().batch
    replicas, accumulation = batch.replicas, batch.accumulation or 1
    copies = f"x{replicas}r" if replicas > 1 else ""
    gathered = f"x{accumulation}{'p' if values['pipeline'] else 'a'}" if accumulation > 1 or values["pipeline"] else ""
    parts = gathered + copies if family == "efficientnet" else copies + gathered
    norm = "_BN" if flat.get("norm") == "batch" else f"_GN{flat.get('norm_groups')}" if flat.get("norm") else "_noBN"
    precision = f"_{values['precision']}" + ("_noSR" if values["no_stochastic_rounding"] else "")
    image = values["image_size"]
    sizes = f"_{image}x{image}" if image and image != 224 and flat["data"] == "imagenet" else ""
    suffix = f"_{values['name_suffix']}" if values["name_suffix"] else ""
    middle = parts + norm + ("" if family == "efficientnet" else precision) + sizes
    return str(
        Path(values["log_dir"]) / f"{short}{size}_bs{batch.micro_batch_size}{middle}{suffix}_v{__version__}_{{random}}"
    )
