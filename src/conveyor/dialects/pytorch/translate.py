"""PyTorch: what the rows of its table mean together, for the early program (2020) and the later one (version 3).

They differ in their defaults: the early one has no weight decay, no flips and counts its schedule in epochs. The later
one is assumed when a configuration is named or one of its own spellings is used.
"""

import math
from collections.abc import Mapping
from fractions import Fraction

from conveyor.data.formats.boxes import CSV_NAME, has_boxes
from conveyor.dialects.pytorch import fine_tuning
from conveyor.dialects.pytorch.table import LATER
from conveyor.dialects.reader import Values
from conveyor.dialects.translation import Draft, Launcher, Translation, check_proportions
from conveyor.errors import UserError
from conveyor.files import user_path
from conveyor.options.units import Duration
from conveyor.topology import exact

STYLE = "pytorch"
SYNTHETIC_IMAGES = 60_000
CROP_OVERLAP = 0.1
"""Share of an object that a crop has to hold with --use-bbox-info."""
HALF_RESOLUTION = {224: 160, 380: 252}
OURS = {"resnext101": "resnext101_32x8d", "mobilenet": "mobilenet_v2"}


def translate(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """Options of train.py (or run_benchmark.py) as ours."""
    later = is_later(values) or script == "run_benchmark"
    draft = Draft(values, STYLE)
    draft.set(micro_batch_size=values["batch_size"], replicas=_replicas(draft, launcher))
    _model(draft, later)
    _data(draft, later, script == "run_benchmark")
    if values["use_bbox_info"]:
        _boxes(draft, script == "run_benchmark", environment.get("DATA_DIR"))
    _stages(draft, later)
    _precision(draft)
    if script == "run_benchmark":
        draft.set(repeat=1, latency=True, max_validation_images=_benchmark_images(draft))
        if not draft.flat.get("synthetic_data"):
            draft.set(generated_data=True if values["data"] != "real" else None)
        return draft.finish("validate")
    if script == "validate":
        return draft.finish("validate")
    if values["batch_size"] == 1 and values["normlayer"] == "batch" and values["gradient_accumulation"] >= 1:
        draft.note("a micro-batch of 1 with batch norm learns badly: take --normlayer group or a larger batch")
    _optimizer(draft, later)
    _schedule(draft, later)
    _events(draft)
    draft.plan_only()
    first = draft.finish("train")
    if not any(values.has(f"fine_tune_{name}") for name in fine_tuning.OPTIONS):
        return first

    def again(second: Values) -> Translation:
        second.given = {key: value for key, value in second.given.items() if not key.startswith("fine_tune_")}
        second.config = {key: value for key, value in second.config.items() if not key.startswith("fine_tune_")}
        return translate(script, second, launcher, environment)

    return fine_tuning.with_second_phase(first, values, again)


def is_later(values: Values) -> bool:
    """Whether the command line is meant for the later program."""
    return values.config_name is not None or not values.spelled.isdisjoint(LATER)


def _replicas(draft: Draft, launcher: Launcher) -> int:
    if not launcher.present:
        return int(draft.values["replicas"])
    return draft.launched_replicas(launcher, "replicas", launcher.local_replicas)


def _model(draft: Draft, later: bool) -> None:
    values = draft.values
    name = str(values["model"])
    norm = values["normlayer"]
    draft.set(model=OURS.get(name, name.replace("-", "_")), norm=norm)
    draft.set(norm_groups=values["groupnorm_group_num"] if norm == "group" else None)
    if later:
        draft.set(stable_norm=True if norm == "batch" and not values["disable_stable_batchnorm"] else None)
        draft.set(zero_init_gamma="projection" if name == "resnet50" else None)
        if norm != "none":
            draft.set(norm_epsilon=values["norm_eps"] if values["norm_eps"] is not None else 1e-5)
        if norm == "batch":
            momentum = values["batchnorm_momentum"]
            draft.set(norm_momentum=momentum if momentum is not None else 0.1)
    elif name.startswith("efficientnet"):
        draft.set(image_size=224)
    if values["input_image_padding"]:
        draft.set(in_channels=4)


def _data(draft: Draft, later: bool, benchmark: bool) -> None:
    values = draft.values
    if benchmark and not values.has("data"):
        values.config["data"] = "real"
    kind, size = values["data"], 380 if values["model"] == "efficientnet-b4" and later else 224
    if kind in ("synthetic", "generated", "real"):
        draft.set(data="imagenet", synthetic_data=True if kind == "synthetic" else None)
        draft.set(generated_data=True if kind == "generated" else None)
        samples = values["iterations"] * values["device_iteration"] * draft.global_batch()
        draft.set(
            max_train_images=SYNTHETIC_IMAGES if kind == "synthetic" else samples if kind == "generated" else None
        )
    else:
        draft.set(data=kind)
    if kind in ("imagenet", "real"):
        draft.set(data_dir=values["imagenet_data_path"])
    if kind == "cifar10":
        draft.set(image_size=draft.flat.get("image_size", size))
    draft.set(
        normalization="imagenet",
        train_crop="resized" if later else "resize-resized",
        flip="random" if later else "none",
    )
    place = values["normalization_location"]
    if values["eight_bit_io"] and place == "host":
        draft.note("--eight-bit-io: images are normalised on the device")
        place = "ipu"
    draft.set(eight_bit_io=bool(values["eight_bit_io"]), normalize_on="device" if place == "ipu" else "host")
    if place == "none":
        draft.set(normalization="none")
    if values["half_res_training"]:
        draft.set(progressive_image_size=[f"0:{HALF_RESOLUTION[size]}"])
    low, high = values["cutmix_lambda_low"], values["cutmix_lambda_high"]
    if (low, high) not in ((0.0, 0.0), (1.0, 1.0)):
        if not 0 <= low <= high <= 1:
            raise UserError(f"--cutmix-lambda-low {low:g} and --cutmix-lambda-high {high:g} must rise from 0 to 1")
        draft.set(cutmix_lambda=low, cutmix_lambda_high=high)
    mixup = values["mixup_alpha"] > 0
    cutmix = "cutmix_lambda" in draft.flat
    needed = 4 if mixup and cutmix else 3 if cutmix else 2 if mixup else 1
    if values["batch_size"] < needed:
        raise UserError(
            f"mixup and cutmix mix the images of a micro-batch: it must hold at least {needed}, not {values['batch_size']}"
        )


def _boxes(draft: Draft, benchmark: bool, usual_folder: str | None) -> None:
    """Crops chosen by bounding boxes; where there are none, a note, and crops as without the option."""
    values = draft.values
    kind, own = values["data"], values.own
    folder = own.get("data_dir") or values["imagenet_data_path"] or usual_folder
    if benchmark:
        reason = "only training draws crops"
    elif kind != "imagenet" or own.get("generated_data") or own.get("synthetic_data"):
        made_up = f"{kind} images" if kind != "imagenet" else "made-up images"
        reason = f"{made_up} have no bounding boxes, so crops are drawn as without it"
    elif folder and user_path(folder).is_dir() and not has_boxes(user_path(folder)):
        reason = f"{folder} has no {CSV_NAME}, so crops are drawn as without it"
    else:
        draft.set(crop_overlap=CROP_OVERLAP)
        return
    draft.note(f"--use-bbox-info has no effect here: {reason}")


def _benchmark_images(draft: Draft) -> int | None:
    values = draft.values
    if values["data"] == "real":
        return None
    return int(values["iterations"] * values["batch_size"])


def _stages(draft: Draft, later: bool) -> None:
    values = draft.values
    splits = [name for name in values["pipeline_splits"] or () if name]
    proportions = values["available_memory_proportion"] or []
    recompute = bool(values["enable_pipeline_recompute"])
    if splits:
        if len(set(splits)) != len(splits):
            raise UserError(f"--pipeline-splits {' '.join(splits)} names a layer twice")
        draft.set(splits=splits, pipeline_schedule="gpipe")
        draft.set(recompute=["stage"] if recompute or later else None)
    elif values["recompute_mode"] != "none":
        draft.set(recompute=["block"])
    elif recompute:
        draft.note("--enable-pipeline-recompute has no effect without --pipeline-splits")
    if proportions and not splits and not later:
        raise UserError("--available-memory-proportion needs --pipeline-splits")
    check_proportions(proportions, len(splits) + 1, f"one for each of the {len(splits) + 1} stages")


def _precision(draft: Draft) -> None:
    values = draft.values
    precision = {"half": "16.16", "full": "32.32"}.get(values["precision"], values["precision"])
    draft.set(precision=precision)
    half = draft.options().precision.is_half
    draft.set(half_partials=True if values["half_partial"] and half else None)
    draft.set(stochastic_rounding="weights" if half and values["enable_stochastic_rounding"] else None)
    first, last = values["initial_loss_scaling"], values["loss_scaling"]
    if last <= 0 or (first is not None and first <= 0):
        raise UserError("--loss-scaling must be above 0")
    if values["auto_loss_scaling"]:
        draft.set(loss_scale="histogram")
    elif first is not None and first != last:
        draft.set(loss_scale=f"{first:g}..{last:g}")
    else:
        draft.set(loss_scale=f"{last:g}")
    draft.set(profile="layers" if values["profile"] else None)


def _optimizer(draft: Draft, later: bool) -> None:
    values = draft.values
    rule, momentum = values["optimizer"], values["momentum"]
    decay = values["weight_decay"] if values["weight_decay"] is not None else (1e-4 if later else 0.0)
    if rule in ("sgd", "sgd_combined"):
        draft.set(optimizer="momentum" if momentum else "sgd", momentum=momentum or None)
    else:
        draft.set(optimizer=rule.removesuffix("_tf"))
        draft.set(momentum=momentum if rule.startswith("rmsprop") else None)
        draft.set(optimizer_epsilon=values["optimizer_eps"] if values["optimizer_eps"] is not None else 1e-8)
    if rule.startswith("rmsprop"):
        draft.set(rmsprop_decay=values["rmsprop_decay"], rmsprop_form="tensorflow" if rule == "rmsprop_tf" else "torch")
    if decay:
        draft.set(decay_exclude=["1d"])
        draft.flat["weight_decay" if rule == "adamw" else "l2_regularization"] = decay


def _schedule(draft: Draft, later: bool) -> None:
    values = draft.values
    kind = values["lr_schedule"]
    epochs = values["epoch"]
    draft.set(epochs=float(epochs))
    ticks = exact(values["lr_scheduler_freq"] or 0)
    tick = Duration(1 / ticks, "ep") if ticks else Duration(Fraction(1), "up")
    if kind in ("no", "step"):
        drops = [Duration(Fraction(epoch), "ep") for epoch in values["lr_epoch_decay"] or ()] if kind == "step" else []
        draft.set(lr_schedule="stepped" if drops else "constant")
        if drops:
            draft.set(lr_drops=drops, lr_decay=values["lr_decay"])
    elif kind == "cosine":
        draft.set(lr_schedule="cosine")
    else:
        draft.set(lr_schedule="exponential", lr_decay=values["lr_decay"], lr_decay_every=tick)
    if values["warmup_epoch"]:
        draft.set(
            warmup=Duration(Fraction(values["warmup_epoch"]), "ep"), warmup_form="from-zero" if later else "epochs"
        )
    if later:
        draft.set(lr_every=tick if kind != "exponential" else None)
    elif kind == "step" or values["warmup_epoch"]:
        draft.set(lr_every=Duration(Fraction(1), "ep"))


def _events(draft: Draft) -> None:
    values = draft.values
    folder = values["checkpoint_output_dir"] or values["checkpoint_path"]
    frequency = Fraction(1, values["checkpoint_save_freq"]) if folder else Fraction(0)
    draft.set(run_dir=folder or None, checkpoints_per_epoch=str(frequency), logs_per_epoch=values["logs_per_epoch"])
    mode = "none" if values["no_validation"] else values["validation_mode"]
    draft.set(validation=mode != "none", validation_mode=mode if mode != "none" else None)
    if mode == "during":
        draft.set(epochs_per_validation=values["validation_frequency"])
    draft.set(wandb_project="pytorch-cnn" if values["wandb"] else None)
    if values["device_iteration"] > 1:
        draft.set(updates_per_call=values["device_iteration"])
    strategy, epochs = values["weight_avg_strategy"], draft.options().length.epochs or values["epoch"]
    if strategy != "none" and not frequency:
        draft.note("--weight-avg-strategy has no effect without --checkpoint-output-dir: there is nothing to average")
    elif strategy == "mean":
        draft.set(average_last=[values["weight_avg_N"] if values["weight_avg_N"] > 0 else math.ceil(epochs)])
    elif strategy == "exponential":
        draft.set(average_decay=[values["weight_avg_exp_decay"]])
    if values["disable_metrics"] and values["no_validation"]:
        draft.note("--disable-metrics: neither loss nor accuracy is computed")
