"""What a run begins with: random or published weights, all of them trained or some of them frozen. No torch."""

from conveyor.data.catalogue import DatasetInfo
from conveyor.errors import UserError
from conveyor.monitor.records import many
from conveyor.options import Options
from conveyor.topology import Length, Topology

FEW_IMAGES = 20_000
"""Photographs below which published weights give a better start than random ones."""
ADVISED = "tf_efficientnet_lite0"


def release_at(options: Options, topology: Topology, length: Length) -> int | None:
    """The updates after which what is frozen is trained too; None: never."""
    chosen = options.optimizer
    if chosen.freeze != "none" and chosen.train_only:
        raise UserError("--freeze backbone and --train-only exclude each other: both say what is trained")
    if chosen.unfreeze_at is None:
        return None
    if chosen.freeze == "none" and not chosen.train_only:
        raise UserError(f"--unfreeze-at {chosen.unfreeze_at}: nothing is frozen; add --freeze backbone")
    return int(
        chosen.unfreeze_at.updates(
            updates_per_epoch=length.updates_per_epoch,
            updates_total=length.updates_total,
            global_batch=topology.global_batch,
        )
    )


def few_images(options: Options, data: DatasetInfo, *, own: bool) -> list[str]:
    """The advice to fine-tune, where training from nothing cannot go far."""
    begun = options.model.weights or options.run.checkpoint_path or own or options.run.resume == "auto"
    if begun or data.name != "folder" or data.train_images >= FEW_IMAGES or not options.events.training:
        return []
    advice = f"add --pretrained {ADVISED} to start from weights that know photographs already"
    return [f"{many(data.train_images, 'photograph')} are few to learn from nothing: {advice}"]


def random_weights(options: Options, *, own: bool) -> list[str]:
    """A note where nothing but chance was validated."""
    known = options.run.checkpoint_path or options.model.weights or own
    return [] if known or options.events.training else ["random weights are validated: no checkpoint is given"]
