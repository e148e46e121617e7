"""TensorFlow 2: what the rows of its table mean together.

Rates are per sample of the global batch (except the stepped schedule's values); weight decay is decoupled; momentum
has Keras's form; periods are the closest divisors of an epoch's updates.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from conveyor.dialects.checkpoint_names import checkpoint_path
from conveyor.dialects.reader import Values
from conveyor.dialects.translation import (
    SCHEDULES,
    Draft,
    Launcher,
    Translation,
    check_proportions,
    exponent_rate,
    share,
)
from conveyor.dialects.values import number
from conveyor.errors import UserError, did_you_mean
from conveyor.options.units import Duration, format_fraction
from conveyor.topology import check_mapping, exact

STYLE = "tensorflow2"


def translate(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """Options of train.py (and of the serving scripts) as ours."""
    if not values["training"] and not values["validation"]:
        raise UserError("--training False and --validation False leave nothing to do: switch one of them on")
    draft = Draft(values, STYLE)
    _data(draft)
    _model(draft)
    _batch(draft, launcher)
    devices = _stages(draft)
    _precision(draft)
    draft.plan_only()
    if not values["training"]:
        _folders(draft)
        return draft.finish("validate")
    _optimizer(draft)
    _schedule(draft)
    _events(draft)
    _folders(draft)
    _loss_scale(draft)
    group = values["dbn_replica_group_size"]
    if group > 1:
        if devices > 1:
            raise UserError(f"--dbn-replica-group-size {group} needs one device per replica, not {devices}")
        replicas = draft.options().batch.replicas
        if replicas % group:
            raise UserError(f"--dbn-replica-group-size {group} must divide the {replicas} replicas")
    draft.set(bn_span=group if group > 1 else None)
    if (
        launcher.present
        and devices > 1
        and values["training"]
        and values["validation"]
        and not values["pipeline_validation_model"]
    ):
        raise UserError(
            "a launched pipelined model needs the same devices in validation: add --pipeline-validation-model or --validation False"
        )
    return draft.finish("train")


def _data(draft: Draft) -> None:
    values = draft.values
    dataset, made = values["dataset"], values["synthetic_data"]
    draft.set(data=dataset)
    if made in ("host", "cpu"):
        draft.set(generated_data=True)
    elif made == "ipu":
        draft.set(synthetic_data=True)
    elif values.has("dataset_path"):
        draft.set(data_dir=values["dataset_path"])
    if dataset == "imagenet":
        draft.set(normalization="imagenet", train_crop="distorted", flip="random")
    elif dataset.startswith("cifar"):
        draft.set(normalization="per-image", train_crop="pad", flip="random")
    else:
        draft.set(normalization="unit", train_crop="none", flip="none")
    on_device = bool(values["accelerator_side_preprocess"])
    if values["eight_bit_transfer"] and not on_device:
        raise UserError("--eight-bit-transfer needs normalisation on the device: add --accelerator-side-preprocess")
    if values["fused_preprocessing"]:
        if not on_device:
            raise UserError("--fused-preprocessing runs on the device: add --accelerator-side-preprocess")
        draft.set(in_channels=4)
    draft.set(eight_bit_io=bool(values["eight_bit_transfer"]), normalize_on="device" if on_device else "host")
    if values["deterministic"] and values["shuffle"]:
        draft.note("--deterministic: images keep their stored order")
    draft.set(shuffle="none" if values["deterministic"] or not values["shuffle"] else None)


def _model(draft: Draft) -> None:
    values = draft.values
    name = str(values["model_name"])
    draft.set(model=name, init="tensorflow")
    if name in ("resnet18", "resnet34"):
        draft.set(project_first=True, zero_init_gamma="none")
    elif name == "resnet50":
        draft.set(zero_init_gamma="unprojected")
    elif name.startswith("cifar"):
        draft.set(shortcut="A")
    layer = values["norm_layer"]
    kind = layer.get("name")
    names = ("batch_norm", "custom_batch_norm", "group_norm")
    if kind not in names:
        raise UserError(f"--norm-layer: there is no norm {kind!r}{did_you_mean(str(kind), names)}")
    if name == "toy_model":
        return
    draft.set(norm_epsilon=1.001e-5)
    if kind == "group_norm":
        groups, channels = layer.get("num_groups"), layer.get("channels_per_group")
        if (groups is None) == (channels is None):
            raise UserError("--norm-layer group_norm needs either num_groups or channels_per_group")
        draft.set(norm="group", norm_groups=groups, norm_group_channels=channels)
    else:
        momentum = number("--norm-layer", layer, "momentum", 0.97 if kind == "custom_batch_norm" else 0.99)
        draft.set(norm="batch", norm_momentum=share(momentum))


def _batch(draft: Draft, launcher: Launcher) -> None:
    values = draft.values
    accumulation, total = values["gradient_accumulation_count"], values["global_batch_size"]
    replicas = values["num_replicas"]
    if launcher.present:
        replicas = draft.launched_replicas(launcher, "num_replicas")
    draft.set(replicas=replicas)
    if not values["training"]:
        return
    if accumulation is not None and total is not None:
        raise UserError("--gradient-accumulation-count and --global-batch-size exclude each other: give one of them")
    if total is not None:
        draft.set(global_batch_size=total)
    else:
        draft.set(accumulation=accumulation or 1)


def _stages(draft: Draft) -> int:
    """Splits, mapping and recomputation; returns the devices of one replica."""
    values = draft.values
    splits = [name for name in values["pipeline_splits"] or () if name != "..."]
    mapping = values["device_mapping"]
    proportions = values["available_memory_proportion"] or []
    stages = len(splits) + 1
    if values["recomputation"] and not splits and values["training"]:
        raise UserError("--recomputation needs a pipelined model: add --pipeline-splits")
    if mapping:
        check_mapping(mapping, stages)
    if len(proportions) > 1 and not splits:
        raise UserError("--available-memory-proportion takes one value without --pipeline-splits")
    check_proportions(proportions, 2 * stages, f"2 for each of the {stages} stages", most=100)
    if splits:
        draft.set(splits=splits, pipeline_schedule=SCHEDULES[values["pipeline_schedule"]], device_mapping=mapping)
        draft.set(recompute=["stage"] if values["recomputation"] else None)
    return max(mapping) + 1 if mapping else stages


def _precision(draft: Draft) -> None:
    values = draft.values
    draft.set(precision=values["precision"])
    half = draft.options().precision.is_half
    draft.set(half_partials=True if values["half_partials"] and half else None)
    draft.set(stochastic_rounding="weights" if half and values["stochastic_rounding"] != "OFF" else None)
    draft.set(saturate=True if half and not values["nanoo"] else None)
    if values["max_cross_replica_buffer_size"]:
        draft.set(bucket_size=str(values["max_cross_replica_buffer_size"]))


def _optimizer(draft: Draft) -> None:
    values = draft.values
    rule, parameters = values["optimizer"], values["optimizer_params"]
    allowed = {
        "sgd": ("momentum",),
        "rmsprop": ("momentum", "base_decay_exponent", "epsilon"),
        "lars": ("momentum", "weight_decay", "eeta", "epsilon"),
    }[rule]
    for key in parameters:
        if key not in allowed:
            raise UserError(f"--optimizer-params: {rule} takes no {key!r}{did_you_mean(str(key), allowed)}")
    flag = "--optimizer-params"
    momentum = number(flag, parameters, "momentum")
    if rule == "sgd":
        draft.set(optimizer="momentum" if momentum else "sgd")
        draft.set(momentum=momentum or None, momentum_form="rate" if momentum else None)
        return
    draft.set(
        optimizer=rule, momentum=momentum, optimizer_epsilon=number(flag, parameters, "epsilon"), momentum_form="rate"
    )
    if rule == "rmsprop":
        draft.set(rmsprop_decay_per_sample=exponent_rate(number(flag, parameters, "base_decay_exponent")))
    else:
        draft.set(lars_eta=number(flag, parameters, "eeta"), lars_exclude=["norm", "bias"])
        if values["weight_decay"]:
            raise UserError("--weight-decay with lars: give weight_decay in --optimizer-params instead")
        draft.set(weight_decay=number(flag, parameters, "weight_decay"))


def _schedule(draft: Draft) -> None:
    values = draft.values
    kind, parameters = values["lr_schedule"], values["lr_schedule_params"]
    flag = f"--lr-schedule-params ({kind})"
    if kind == "stepped":
        rates, boundaries = _numbers(flag, parameters, "values"), _numbers(flag, parameters, "boundaries")
        if len(boundaries) != len(rates) - 1:
            raise UserError(f"{flag}: {len(rates)} values need {len(rates) - 1} boundaries, not {len(boundaries)}")
        if rates[0] <= 0:
            raise UserError(f"{flag}: the first value must be above 0")
        draft.set(lr_schedule="stepped", learning_rate=rates[0], lr_values=[rate / rates[0] for rate in rates[1:]])
        draft.set(lr_drops=[Duration(exact(boundary), "ep") for boundary in boundaries], lr_drop_form="passed")
    else:
        rate = number(flag, parameters, "initial_learning_rate")
        draft.set(learning_rate=rate, lr_reference_batch=1, lr_schedule={"const": "constant"}.get(kind, kind))
    if kind in ("cosine", "polynomial"):
        draft.set(lr_horizon=Duration(exact(number(flag, parameters, "epochs_to_total_decay")), "ep"))
    if kind == "polynomial":
        draft.set(
            lr_end=number(flag, parameters, "end_learning_rate_ratio"), lr_power=number(flag, parameters, "power")
        )
    warmup = values["lr_warmup_params"]
    if warmup:
        mode = warmup.get("warmup_mode")
        if mode not in ("shift", "mask"):
            raise UserError(f"--lr-warmup-params: warmup_mode cannot be {mode!r}: choose shift or mask")
        epochs = exact(number("--lr-warmup-params", warmup, "warmup_epochs"))
        draft.set(warmup=Duration(epochs, "ep"), warmup_mode=mode, warmup_form="from-first")
    if values["lr_staircase"]:
        draft.set(lr_every=Duration(Fraction(1), "ep"))


def _numbers(flag: str, parameters: Mapping[str, Any], key: str) -> list[float]:
    found = parameters.get(key)
    if not isinstance(found, list) or not found:
        raise UserError(f"{flag} needs {key!r}: a list such as [0.1, 0.01]")
    return [number(flag, {key: part}, key) for part in found]


def _events(draft: Draft) -> None:
    values = draft.values
    draft.set(wandb_project="tf2-resnet50" if values["wandb"] else None)
    logs, saves = exact(values["logs_per_epoch"]), exact(values["ckpts_per_epoch"])
    epochs = exact(draft.options().length.epochs or values["num_epochs"])
    if 0 < logs < 1 and (epochs * logs).denominator != 1:
        raise UserError(
            f"It is not possible to log {float(1 / logs)} epochs a time for {format_fraction(epochs)} epochs: "
            "change --logs-per-epoch or --num-epochs"
        )
    if logs < 1 and saves and (logs == 0 or (logs / saves).denominator != 1):
        # A host call lasts gcd(log period, checkpoint period), and a checkpoint is written every epoch by default.
        calls = format_fraction(epochs * logs) if logs else "1"
        wanted = f"{calls} call{'s' if calls != '1' else ''} for the whole run"
        draft.note(
            f"--logs-per-epoch {format_fraction(logs)} alone would be {wanted}, but --ckpts-per-epoch "
            f"{format_fraction(saves)} returns to the host more often: --ckpts-per-epoch {format_fraction(logs)} does not"
        )
    draft.set(logs_per_epoch=str(logs), checkpoints_per_epoch=str(saves))
    draft.set(first_checkpoint_epoch=values["first_ckpt_epoch"], epochs=float(values["num_epochs"]))
    updates = values["weight_updates_per_epoch"]
    if updates != -1 and updates < 1:
        raise UserError(f"--weight-updates-per-epoch {updates}: give -1 (from the data) or at least 1")
    draft.set(updates_per_epoch=updates if updates != -1 else None)
    if values["ckpt_all_instances"] and not values["ckpts_per_epoch"]:
        raise UserError("--ckpt-all-instances without checkpoints: raise --ckpts-per-epoch above 0")


def _folders(draft: Draft) -> None:
    values = draft.values
    draft.set(validation=values["validation"], validation_mode="after", run_dir=values["checkpoint_output_dir"])
    given = values["checkpoint_input_dir"]
    if given and not values["training"]:
        draft.set(checkpoint_path=checkpoint_path(given))
    elif given and given != values["checkpoint_output_dir"]:
        draft.note("--checkpoint-input-dir: after training, the run's own checkpoints are validated")


def _loss_scale(draft: Draft) -> None:
    values = draft.values
    if values["loss_scaling"]:
        draft.set(loss_scale=f"{values['loss_scaling']:g}")
    if not values["auto_loss_scaling"]:
        return
    reasons = (
        (values["optimizer"] != "sgd", "the optimizer must be sgd"),
        (bool(values["optimizer_params"].get("momentum")), "the momentum must be 0"),
        (values["lr_schedule"] != "const", "the schedule must be const"),
        (set(values["lr_schedule_params"]) != {"initial_learning_rate"}, "only initial_learning_rate may be given"),
        (bool(values["lr_warmup_params"]), "there can be no warm-up"),
    )
    for wrong, reason in reasons:
        if wrong:
            raise UserError(f"--auto-loss-scaling: {reason}")
    draft.set(loss_scale="histogram")
