"""TensorFlow 1: what the rows of its table mean together.

Rates are powers of two per sample of the global batch; weight decay is L2 in the gradient; unset options take the
values of the model family and the data set; periods are counted in whole updates of an epoch.
"""

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from conveyor.data import catalogue as data_catalogue
from conveyor.dialects import tensorflow1_models as models
from conveyor.dialects.reader import Values, check_family
from conveyor.dialects.translation import Draft, Launcher, Translation, exponent_rate, positive, share
from conveyor.errors import UserError, did_you_mean
from conveyor.options.units import Duration, format_fraction
from conveyor.topology import exact
from conveyor.version import __version__

STYLE = "tensorflow1"
SCHEDULES = {"Grouped": "gpipe", "Interleaved": "1f1b", "Sequential": "sequential"}
DATA = {"imagenet": "imagenet", "cifar-10": "cifar10", "cifar-100": "cifar100"}
SUBFOLDERS = {"imagenet": "imagenet-data", "cifar-10": "cifar-10-batches-bin", "cifar-100": "cifar-100-binary"}
PROFILES = {"NO_PROFILE": "off", "DEVICE_PROFILE": "light", "IPU_PROFILE": "layers", "TILE_PROFILE": "full"}


def translate(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """Options of train.py or validation.py as ours."""
    family = str(values["model"])
    if family not in models.FAMILIES:
        raise UserError(f"--model: there is no model {family!r}{did_you_mean(family, models.FAMILIES)}")
    check_family(values, family)
    positive(values, "batch_size", "gradient_accumulation_count", "replicas", "shards", "iterations", "BN_span")
    positive(values, "batches_per_step", "logs_per_epoch", "log_freq", "valid_batch_size", "image_size", "lr_drops")
    draft = Draft(values, STYLE)
    dataset = _data(draft, environment)
    defaults = models.DEFAULTS[family]
    column = 0 if dataset == "imagenet" else 1
    size = str(values["model_size"] or defaults.size[column])
    if values["model_size"] is not None and str(values["model_size"]).endswith(".0"):
        size = str(int(float(size)))
    name = models.model_name(family, size, cifar=column == 1)
    _model(draft, family, name, dataset, defaults.groups[column])
    draft.set(profile_dir=environment.get("GC_PROFILE_LOG_DIR") if values["profile"] else None)
    draft.set(micro_batch_size=values["batch_size"] or defaults.micro_batch[column])
    draft.set(accumulation=values["gradient_accumulation_count"])
    replicas = _replicas(draft, launcher, environment)
    draft.set(replicas=replicas)
    if script in ("validation", "inference_embedded"):
        draft.set(checkpoint_path=values["restore_path"], validation_mode="after")
        _numerics(draft)
        draft.set(latency=True if script == "inference_embedded" else None)
        if not values["restore_path"]:
            draft.note("no --restore-path: the model is validated with random weights")
        return draft.finish("validate")
    _stages(draft, name)
    _numerics(draft)
    _optimizer(draft, family, dataset, defaults, column)
    images = _images(draft)
    global_batch = draft.flat["micro_batch_size"] * draft.flat["accumulation"] * replicas
    epochs = _length(draft, defaults.epochs[column], images, global_batch)
    _schedule(draft, defaults, dataset, epochs, global_batch)
    _events(draft, images, global_batch, epochs)
    if values["compile_only"]:
        values.dry_run = True
        draft.note("--compile-only: nothing is compiled here, so the plan is printed")
    if values["restore_path"]:
        draft.set(checkpoint_path=values["restore_path"])
        draft.note(
            "--restore-path: training goes on from the newest checkpoint there, with the model and the batch of that run"
        )
        return draft.finish("restore")
    return dataclasses.replace(draft.finish("train"), folder=run_folder(draft))


def _data(draft: Draft, environment: Mapping[str, str]) -> str:
    """The data set's name in the dialect; inferred from the folder's text when not given."""
    values = draft.values
    made = values["generated_data"] or values["synthetic_data"]
    folder = values["data_dir"] or environment.get("DATA_DIR")
    dataset = values["dataset"]
    if dataset is None and made:
        raise UserError("--dataset is needed with generated or synthetic data: imagenet, cifar-10 or cifar-100")
    if dataset is None and folder:
        text = str(folder).lower()
        words = (("imagenet", "imagenet"), ("cifar100", "cifar-100"), ("cifar-100", "cifar-100"), ("cifar", "cifar-10"))
        dataset = next((name for word, name in words if word in text), None)
        if dataset is None:
            raise UserError(
                f"--data-dir {folder} does not say which data it holds: add --dataset imagenet, cifar-10 or cifar-100"
            )
    if dataset is None:
        if not values.dry_run:
            raise UserError("no data: give --data-dir, or set the environment variable DATA_DIR")
        dataset = "imagenet"
        draft.note("no --data-dir and no DATA_DIR: the plan is made for imagenet, a run needs one of them")
    draft.set(data=DATA[dataset], data_dir=None if made or not folder else str(_search(Path(str(folder)), dataset)))
    if dataset == "imagenet":
        draft.set(normalization="imagenet" if values["normalise_input"] else "mean", flip="random")
        draft.set(train_crop="centre" if values["train_with_valid_preprocessing"] else "distorted")
    else:
        if values["image_size"] not in (None, 32):
            raise UserError(f"--image-size {values['image_size']}: CIFAR images are 32 x 32, leave it out")
        draft.set(normalization="per-image", train_crop="pad", flip="random")
    _images_options(draft, dataset)
    return str(dataset)


def _images_options(draft: Draft, dataset: str) -> None:
    values = draft.values
    draft.set(eight_bit_io=bool(values["eight_bit_io"]), normalize_on="host" if values["hostside_norm"] else "device")
    if values["hostside_norm"] and values["eight_bit_io"]:
        draft.set(normalize_on="device")
        draft.note("--eight-bit-io: images are normalised on the device")
    if values["fused_preprocessing"]:
        if dataset == "imagenet":
            draft.set(in_channels=4)
        else:
            draft.note("--fused-preprocessing is for ImageNet only: it is left out")
    if values["no_dataset_cache"]:
        draft.set(data_cache="off")
    percentage = values["dataset_percentage_to_use"]
    if percentage is not None and not 1 <= percentage <= 100:
        raise UserError(f"--dataset-percentage-to-use {percentage}: give a whole number from 1 to 100")
    draft.set(data_percentage=percentage)
    mixing = values["mixup_alpha"] > 0 or values["cutmix_lambda"] != 1.0
    if mixing and (values["generated_data"] or values["synthetic_data"]):
        draft.note("mixup and cutmix are off with generated or synthetic data")
        return
    if not 0 <= values["cutmix_lambda"] <= 1:
        raise UserError(f"--cutmix-lambda {values['cutmix_lambda']:g}: give a number from 0 to 1")
    if mixing:
        draft.set(mixup_alpha=values["mixup_alpha"], cutmix_lambda=values["cutmix_lambda"])
        draft.set(mix_on="host" if values["hostside_image_mixing"] else None)
    if values["cutmix_lambda"] < 1 and values["cutmix_version"] == 1:
        skip = float(Fraction("1.55") * exact(values["cutmix_lambda"]) - Fraction("0.96"))
        draft.set(cutmix_draw="exponential", cutmix_skip_probability=round(min(1.0, max(0.0, skip)), 6))


def _search(folder: Path, dataset: str) -> Path:
    """The original looks for a known sub-folder when the files are not directly inside."""
    inner = folder / SUBFOLDERS[dataset]
    return inner if inner.is_dir() else folder


def _model(draft: Draft, family: str, name: str, dataset: str, groups: int) -> None:
    values = draft.values
    imagenet = dataset == "imagenet"
    draft.set(model=name, init="tensorflow")
    batch, group = bool(values["batch_norm"]), bool(values["group_norm"])
    if family == "efficientnet":
        norm = "batch" if batch else "group"
        draft.set(norm_epsilon=values["norm_epsilon"] if values["norm_epsilon"] is not None else 0.001)
    else:
        norm = "group" if group else "batch" if batch else ("group" if imagenet else "batch")
    if values["proxy_norm"]:
        norm = "proxy"
    if family != "squeezenet":
        draft.set(norm=norm, norm_momentum=share(values["BN_decay"] or 0.97) if norm == "batch" else None)
        draft.set(norm_groups=(values["groups"] or groups) if norm != "batch" else None)
    if values["stable_norm"] or (
        imagenet and family in ("resnext", "efficientnet") and not values["force_unstable_norm"]
    ):
        draft.set(stable_norm=True)
    bottleneck = (
        name.removeprefix("resnet") in ("14", "26", "50", "101", "152") or family == "resnext" or "bottleneck" in name
    )
    if family in ("resnet", "resnext"):
        draft.set(zero_init_gamma="unprojected" if bottleneck else "none")
        if not bottleneck:
            draft.set(shortcut="B" if imagenet else "A", project_first=True if imagenet else None)
    draft.set(wide=True if values["widenet"] else None, squeeze_excite=False if values["no_se"] else None)
    draft.set(activation="relu" if values["use_relu"] else None)


def _replicas(draft: Draft, launcher: Launcher, environment: Mapping[str, str]) -> int:
    """Data-parallel copies in all: a launcher's total, or those of one worker times the workers of TF_CONFIG."""
    values = draft.values
    if launcher.present:
        if values["distributed"]:
            raise UserError("--distributed and poprun exclude each other: leave out --distributed")
        if values.has("replicas") and values["replicas"] not in (launcher.replicas, launcher.local_replicas):
            draft.note(f"--replicas {values['replicas']}: the launcher's {launcher.replicas} replicas hold")
        return launcher.replicas
    replicas = int(values["replicas"])
    if values["distributed"]:
        if values["batches_per_step"] != 1:
            raise UserError("--distributed needs --batches-per-step 1: gradients leave the device after every update")
        replicas *= _workers(environment)
    return replicas


def _workers(environment: Mapping[str, str]) -> int:
    import json

    example = '{"cluster": {"worker": ["host0:3636", "host1:3636"]}, "task": {"type": "worker", "index": 0}}'
    text = environment.get("TF_CONFIG", "")
    if not text:
        raise UserError(f"--distributed needs the environment variable TF_CONFIG, such as {example}")
    try:
        return len(json.loads(text)["cluster"]["worker"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"TF_CONFIG cannot be read: it should look like {example}") from None


def _stages(draft: Draft, name: str) -> None:
    values = draft.values
    shards, splits = int(values["shards"]), list(values["pipeline_splits"] or ())
    recompute = bool(values["enable_recomputation"])
    schedule = str(values["pipeline_schedule"])
    _memory(draft, shards)
    if not values["pipeline"]:
        if len(splits) > 1:
            raise UserError("--pipeline-splits needs --pipeline")
        if shards > 1:
            draft.set(stages=shards, splits=["auto"], pipeline_schedule="sequential")
            draft.set(split_include=[word for word in values["sharding_include_filter"] or () if word] or None)
            draft.set(split_exclude=values["sharding_exclude_filter"])
            draft.note(
                f"{shards} shards without --pipeline: the model is split automatically and runs stage after stage"
            )
        draft.set(recompute=["block"] if recompute else None)
        return
    for key in ("sharding_include_filter", "sharding_exclude_filter"):
        if values.has(key):
            draft.note(f"{values.spelling(key)} has no effect with --pipeline: --pipeline-splits names the cuts")
    known = " ".join(models.split_names(name))
    if shards == 1:
        if not splits:
            raise UserError(f"--pipeline with 1 shard needs --pipeline-splits (recompute points); there are {known}")
        if schedule != "Sequential":
            draft.note(f"--pipeline-schedule {schedule}: with 1 shard the stages run one after the other")
        schedule = "Sequential"
        draft.set(device_mapping=[0] * (len(splits) + 1))
    elif len(splits) != shards - 1:
        raise UserError(
            f"--shards {shards} with --pipeline needs {shards - 1} --pipeline-splits, not {len(splits)}; there are {known}"
        )
    draft.set(splits=models.check_splits(name, splits), pipeline_schedule=SCHEDULES[schedule])
    draft.set(recompute=["stage"] if recompute else None)


def _memory(draft: Draft, shards: int) -> None:
    proportions = draft.values["available_memory_proportion"]
    if not proportions:
        return
    if len(proportions) > 1 and not draft.values["pipeline"]:
        raise UserError("--available-memory-proportion takes one value without --pipeline")
    if len(proportions) not in (1, 2 * shards):
        raise UserError(
            f"--available-memory-proportion has {len(proportions)} values: give 1, or 2 for each of the {shards} shards"
        )
    if not all(0 < proportion <= 1 for proportion in proportions):
        raise UserError("--available-memory-proportion takes fractions above 0 and up to 1")


def _numerics(draft: Draft) -> None:
    values = draft.values
    half = values["precision"] != "32.32"
    rounding = "weights" if half and not values["no_stochastic_rounding"] else None
    if values["enable_half_partials"] and not half:
        draft.note("--enable-half-partials has no effect at 32.32")
    draft.set(stochastic_rounding=rounding, half_partials=True if values["enable_half_partials"] and half else None)
    draft.set(loss_scale=f"{values['loss_scaling']:g}")
    if values["max_cross_replica_buffer_size"]:
        draft.set(bucket_size=str(values["max_cross_replica_buffer_size"]))
    if values["profile"]:
        draft.set(profile=PROFILES[values["profile"]])
    chosen = [word for word in values["select_ipu"] or () if word.upper() != "AUTO"]
    if not all(word.isdigit() for word in chosen):
        raise UserError(f"--select-ipu {' '.join(chosen)}: give AUTO or device numbers as gc-info -l lists them")
    draft.set(device_ids=[int(chosen[0])] if chosen else None)
    if values["wandb"]:
        draft.set(wandb_project=values["wandb_project"])


def _optimizer(draft: Draft, family: str, dataset: str, defaults: models.Defaults, column: int) -> None:
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
    smoothing = smoothing if smoothing else defaults.label_smoothing[column]
    if not 0 <= smoothing < 1:
        raise UserError(f"--label-smoothing {smoothing:g}: give a number from 0 to below 1")
    draft.set(label_smoothing=smoothing, smoothing_form="others" if smoothing else None)


def _images(draft: Draft) -> int:
    """Training images of the run, as the periods are computed from them."""
    known = data_catalogue.known()[draft.flat["data"]]
    images = known.train_images * int(draft.flat.get("data_percentage") or 100) // 100
    limit = draft.values.own.get("max_train_images")
    return min(images, int(limit)) if limit else images


def _length(draft: Draft, default_epochs: int, images: int, global_batch: int) -> Fraction:
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


def _schedule(draft: Draft, defaults: models.Defaults, dataset: str, epochs: Fraction, global_batch: int) -> None:
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
    if warmup < 0:
        raise UserError(f"--warmup-epochs {format_fraction(warmup)}: give 0 (off) or more")
    if epochs == 0 and warmup:
        draft.note("--iterations without --epochs: no warm-up")
        warmup = Fraction(0)
    if warmup and values["iterations"] is not None:
        draft.set(warmup=Duration(100 * warmup / epochs, "%"))
    elif warmup:
        draft.set(warmup=Duration(warmup, "ep"))


def _percentages(text: str) -> list[Duration]:
    """`0.3,0.6` -> 30 % and 60 % of the run."""
    try:
        fractions = [Fraction(part.strip()) for part in str(text).split(",")]
    except (ValueError, ZeroDivisionError):
        fractions = []
    if not fractions or not all(0 <= fraction <= 1 for fraction in fractions):
        raise UserError(
            f"--learning-rate-schedule {text}: give fractions of the run separated by commas, such as 0.5,0.75"
        )
    return [Duration(100 * fraction, "%") for fraction in fractions]


def _events(draft: Draft, images: int, global_batch: int, epochs: Fraction) -> None:
    """Log every `(N // G) // logs` updates, save every `(N // G) // checkpoints`; the host step divides the log period."""
    values = draft.values
    per_epoch = images // global_batch
    saves = values["ckpts_per_epoch"]
    if saves < 0 or values["epochs_per_ckpt"] < 0:
        raise UserError("a checkpoint frequency cannot be negative: give 0 (none) or more")
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
    size = "".join(ch for ch in name if ch.isdigit()) if family != "efficientnet" else name.split("_")[1].upper()
    replicas, accumulation = int(flat["replicas"]), int(flat["accumulation"])
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
        Path(values["log_dir"])
        / f"{short}{size}_bs{flat['micro_batch_size']}{middle}{suffix}_v{__version__}_{{random}}"
    )
