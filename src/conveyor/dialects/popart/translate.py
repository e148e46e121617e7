"""PopART: what the rows of its table mean together.

The batch size counts all replicas, and the learning rate ignores accumulation.
"""

import dataclasses
from collections.abc import Mapping

from conveyor.dialects.reader import Values
from conveyor.dialects.translation import Draft, Launcher, Translation, exponent_rate
from conveyor.dialects.values import fractions
from conveyor.errors import UserError
from conveyor.options.units import Duration

STYLE = "popart"
CIFAR_SIZES = ("8", "14", "20", "32", "44", "56", "110")


def translate(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """Options of resnet_main.py as ours."""
    draft = Draft(values, STYLE)
    synthetic = script == "resnet_synthetic_benchmark"
    imagenet = values["dataset"] == "IMAGENET"
    draft.set(data=values["dataset"].lower().replace("-", ""), synthetic_data=True if synthetic else None)
    if values["data_dir"] is None and not synthetic:
        raise UserError("--data-dir is required: the folder with the data, or where CIFAR is to be stored")
    draft.set(data_dir=None if synthetic else values["data_dir"])
    draft.set(
        normalization="imagenet" if imagenet else "cifar", train_crop="resized" if imagenet else "pad", flip="random"
    )
    # One transform serves both sets of CIFAR images in this program, so its accuracy is that of shifted, flipped images.
    draft.set(validation_transform=None if imagenet else "train")
    draft.set(normalize_on="host", eight_bit_io=False, in_channels=4)
    workers = values["num_workers"]
    draft.set(loader_threads=None if workers is None else max(1, workers))
    _model(draft)
    _batch(draft, launcher)
    half = values["precision"] == "16"
    draft.set(
        precision="16.16" if half else "32.32", stochastic_rounding="weights" if half and values["prng"] else None
    )
    draft.set(optimizer="sgd", l2_regularization=values["weight_decay"], epochs=float(values["epochs"]))
    batch = draft.options().batch
    draft.set(learning_rate=exponent_rate(values["base_learning_rate"]) * batch.micro_batch_size * batch.replicas)
    _schedule(draft)
    draft.set(
        updates_per_log=values["steps_per_log"] * values["batches_per_step"],
        updates_per_call=values["batches_per_step"],
    )
    draft.set(validation=not values["no_validation"], checkpoints_to_keep=1)
    per_epoch = values["valid_per_epoch"]
    if per_epoch <= 0:
        raise UserError(f"--valid-per-epoch {per_epoch:g}: give a number above 0, or --no-validation")
    draft.set(epochs_per_validation=max(1, round(1 / per_epoch)))
    draft.set(profile="layers" if values["get_reports"] else None)
    folder = f"{values['log_dir']}/{{time}}/{values['size']}/{values['log_dir_string']}"
    return dataclasses.replace(draft.finish("train"), folder=folder)


def _model(draft: Draft) -> None:
    values = draft.values
    size = values["size"]
    name = "resnext50" if size == "x50" else f"cifar_resnet{size}" if size in CIFAR_SIZES else f"resnet{size}"
    norm = values["norm_type"].lower()
    draft.set(model=name, norm=norm, norm_groups=values["norm_groups"] if norm == "group" else None)
    draft.set(init="glorot-channels", stride_in_1x1=True, zero_init_gamma="none")
    draft.set(image_size=224 if values["dataset"] == "IMAGENET" else 32)


def _batch(draft: Draft, launcher: Launcher) -> None:
    values = draft.values
    if launcher.present:
        draft.note(
            "this program replicates inside one process: --replication-factor holds, not the launcher's replicas"
        )
    batch, copies, devices = values["batch_size"], values["replication_factor"], values["num_ipus"]
    if devices % copies:
        raise UserError(f"--num-ipus {devices} must be a multiple of the replication factor {copies}")
    if batch % copies:
        raise UserError(f"--batch-size {batch} must be a multiple of the replication factor {copies}")
    if batch % devices:
        draft.note(f"--batch-size {batch} is no multiple of the {devices} devices")
    stages = devices // copies
    draft.set(micro_batch_size=batch // copies, replicas=copies)
    if stages > 1:
        draft.set(stages=stages, splits=["auto"], pipeline_schedule="gpipe" if values["pipeline"] else "sequential")
    elif values["pipeline"]:
        draft.note("--pipeline has no effect with one device per replica")
    if values["recompute"]:
        draft.set(recompute=["stage" if stages > 1 and values["pipeline"] else "block"])


def _schedule(draft: Draft) -> None:
    values = draft.values
    factors = fractions("--learning-rate-decay", values["learning_rate_decay"])
    drops = fractions("--learning-rate-schedule", values["learning_rate_schedule"])
    if len(factors) != len(drops) + 1:
        raise UserError(
            f"--learning-rate-decay has {len(factors)} factors and --learning-rate-schedule {len(drops)} points: "
            "there must be one factor more than points"
        )
    if factors[0] <= 0:
        raise UserError("--learning-rate-decay: the first factor must be above 0")
    draft.flat["learning_rate"] *= float(factors[0])
    draft.set(lr_schedule="stepped", lr_drops=[Duration(100 * drop, "%") for drop in drops])
    draft.set(lr_drop_form="passed", lr_values=[float(factor / factors[0]) for factor in factors[1:]])
