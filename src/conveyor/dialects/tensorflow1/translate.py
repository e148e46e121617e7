"""TensorFlow 1: what the rows of its table mean together.

Rates are powers of two per sample of the global batch; weight decay is L2 in the gradient; unset options take the
values of the model family and the data set; periods are counted in whole updates of an epoch.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conveyor.dialects.checkpoint_names import checkpoint_path
from conveyor.dialects.reader import Values, check_family
from conveyor.dialects.tensorflow1 import models, training
from conveyor.dialects.translation import SCHEDULES, Draft, Launcher, Translation, check_proportions, share
from conveyor.errors import UserError
from conveyor.files import parse_json
from conveyor.launch.rank import TF_CONFIG_EXAMPLE
from conveyor.options import Options

STYLE = "tensorflow1"
DATA = {"imagenet": "imagenet", "cifar-10": "cifar10", "cifar-100": "cifar100"}
SUBFOLDERS = {"imagenet": "imagenet-data", "cifar-10": "cifar-10-batches-bin", "cifar-100": "cifar-100-binary"}
PROFILES = {"NO_PROFILE": "off", "DEVICE_PROFILE": "light", "IPU_PROFILE": "layers", "TILE_PROFILE": "full"}


def translate(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """Options of train.py or validation.py as ours."""
    family = str(values["model"])
    check_family(values, family)
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
        made = values["generated_data"] or values["synthetic_data"]
        if not (made or values["restore_path"] or {"checkpoint_path", "weights"} & values.own.keys()):
            raise UserError("--restore-path is required: the run or the checkpoint that is to be validated")
        draft.set(checkpoint_path=checkpoint_path(values["restore_path"]) if values["restore_path"] else None)
        _numerics(draft, validates=True)
        draft.set(latency=True if script == "inference_embedded" else None)
        return draft.finish("validate")
    _stages(draft, name)
    _numerics(draft)
    training.optimizer(draft, family, dataset, defaults, column)
    if values["variable_filter"]:
        draft.set(train_only=models.trained(name, values["variable_filter"]))
    images = training.images(draft)
    global_batch = draft.global_batch()
    epochs = training.length(draft, defaults.epochs[column])
    training.schedule(draft, defaults, dataset, epochs, global_batch)
    training.events(draft, images, global_batch, epochs)
    if values["dataset_benchmark"]:
        return dataclasses.replace(draft.finish("data"), words=("bench",))
    draft.plan_only()
    return dataclasses.replace(draft.finish("train"), folder=training.run_folder(draft))


def in_words(stored: Options) -> dict[str, Any]:
    """The values that the periods of a stored run depend on, under this program's names."""
    names = {ours: theirs for theirs, ours in DATA.items()}
    words: dict[str, Any] = {
        "dataset": names.get(stored.data.data or "", "imagenet"),
        "iterations": stored.length.updates,
    }
    name = str(stored.model.model).removeprefix("cifar_")
    words["model"] = next((family for family in models.FAMILIES if name.startswith(family)), "resnet")
    return words


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
        draft.set(cutmix_draw="exponential")


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
        if norm == "group" and family != "efficientnet" and not imagenet and values["groups"] is None:
            draft.note(f"no --groups: {groups} groups, the program's default for CIFAR images (for ImageNet it is 32)")
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
    draft.set(activation="relu" if values["use_relu"] else None, bypass=True if values["use_bypass"] else None)


def _replicas(draft: Draft, launcher: Launcher, environment: Mapping[str, str]) -> int:
    """Data-parallel copies in all: a launcher's total, or those of one worker times the workers of TF_CONFIG."""
    values = draft.values
    if launcher.present:
        if values["distributed"]:
            raise UserError("--distributed and poprun exclude each other: leave out --distributed")
        return draft.launched_replicas(launcher, "replicas", launcher.local_replicas)
    replicas = int(values["replicas"])
    if values["distributed"]:
        if values["batches_per_step"] != 1:
            raise UserError("--distributed needs --batches-per-step 1: gradients leave the device after every update")
        if values.dry_run and not environment.get("TF_CONFIG"):
            draft.note("--distributed without TF_CONFIG: the plan is made for one worker, a run needs TF_CONFIG")
        else:
            replicas *= _workers(environment)
    return replicas


def _workers(environment: Mapping[str, str]) -> int:
    text = environment.get("TF_CONFIG", "")
    if not text:
        raise UserError(f"--distributed needs the environment variable TF_CONFIG, such as {TF_CONFIG_EXAMPLE}")
    try:
        return len(parse_json(text)["cluster"]["worker"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"TF_CONFIG cannot be read: it should look like {TF_CONFIG_EXAMPLE}") from None


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
    check_proportions(proportions, 2 * shards, f"2 for each of the {shards} shards")


def _numerics(draft: Draft, validates: bool = False) -> None:
    values = draft.values
    half = draft.options().precision.is_half
    rounding = "weights" if half and not values["no_stochastic_rounding"] else None
    if values["enable_half_partials"] and not half:
        draft.note("--enable-half-partials has no effect at 32.32")
    draft.set(stochastic_rounding=rounding, half_partials=True if values["enable_half_partials"] and half else None)
    draft.set(loss_scale=f"{values['loss_scaling']:g}")
    if values["max_cross_replica_buffer_size"]:
        draft.set(bucket_size=str(values["max_cross_replica_buffer_size"]))
    if values["profile"]:
        draft.set(profile=PROFILES[values["profile"]])
    flag = values.spelling("select_ipu")
    chosen = [word for word in values["select_ipu"] or () if word.upper() != "AUTO"]
    if not all(word.isdecimal() for word in chosen):
        raise UserError(f"{flag} {' '.join(chosen)}: give AUTO or device numbers as gc-info -l lists them")
    if len(chosen) > 2:
        raise UserError(f"{flag} {' '.join(chosen)}: give the device of training and, if wanted, that of validation")
    draft.set(device_ids=[int(chosen[-1 if validates else 0])] if chosen else None)
    if len(chosen) == 2 and not validates:
        draft.set(validation_device_ids=[int(chosen[1])])
        if not values["validation"]:
            draft.note(f"{flag} {' '.join(chosen)}: {chosen[1]} has no effect with --no-validation")
    if values["wandb"]:
        draft.set(wandb_project=values["wandb_project"])
