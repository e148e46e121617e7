"""Text about a run before it starts (no torch here)."""

from conveyor.errors import UserError, needed
from conveyor.options.units import format_fraction, many
from conveyor.spec import RunSpec


def describe(spec: RunSpec) -> str:
    """The plan that `--dry-run` prints for a person."""
    topology, events, options = spec.topology, spec.events, spec.options
    if not options.events.training:
        return _validation(spec)
    rate = f"{options.schedule.lr_schedule}, peak {spec.schedule.peak:.6g}"
    if spec.schedule.warmup:
        mode = "" if options.schedule.warmup_mode == "mask" else f" ({options.schedule.warmup_mode})"
        rate += f", warm-up {many(spec.schedule.warmup, 'update')}{mode}"
    splits = f", split at {' '.join(options.batch.splits)}" if options.batch.splits else ""
    batch = f"{topology.micro_batch} x accumulation {topology.accumulation} x {many(topology.replicas, 'replica')}"
    batch += f" = {topology.global_batch} per update, {many(topology.stages, 'stage')}{splits}"
    periods = f"log {_every(events.updates_per_log)}, checkpoint {_every(events.updates_per_checkpoint)}"
    lines = [
        _model(spec),
        f"data        {spec.data.name}: {many(spec.data.train_images, 'image', ',')}, {spec.data.validation_images:,} for validation",
        f"batch       {batch}",
        f"length      {_epochs(spec)} of {many(spec.length.updates_per_epoch, 'update')} = {many(spec.length.updates_total, 'update')}",
        f"optimiser   {options.optimizer.optimizer}, precision {options.precision.precision}, loss scale {options.precision.loss_scale}",
        f"rate        {rate}",
        f"events      {periods}, {many(events.calls, 'host call')} of {events.updates_per_call}",
    ]
    if options.events.validation:
        lines.append(
            f"validation  {many(spec.data.validation_images, 'image', ',')} in batches of {spec.validation_batch}"
        )
    lines.append(spec.layout_note.replace("layout ", "layout      ", 1))
    lines += [f"note        {note}" for note in spec.notes]
    lines.append(f"command     {options.command_text('train')}")
    return "\n".join(lines)


def _validation(spec: RunSpec) -> str:
    options = spec.options
    what = options.run.checkpoint_path or options.model.weights or "random weights"
    lines = [
        f"validate    {what}",
        _model(spec),
        f"data        {spec.data.name}: {many(spec.data.validation_images, 'image', ',')} in batches of {spec.validation_batch}",
        f"precision   {options.precision.precision}",
        spec.layout_note.replace("layout ", "layout      ", 1),
        *(f"note        {note}" for note in spec.notes),
        f"command     {options.command_text('validate')}",
    ]
    return "\n".join(lines)


def opening_lines(spec: RunSpec, parameters: int, precision: str) -> list[str]:
    """The lines that a run prints when it starts."""
    topology = spec.topology
    what = f"{spec.subject.name} ({parameters:,} parameters, {precision}) on {spec.data.name}"
    length = f"{many(spec.length.updates_total, 'update')} of {many(topology.global_batch, 'image')}"
    return [
        f"{what}: {length}, {_epochs(spec)}",
        spec.layout_note,
        *(f"note: {note}" for note in spec.notes),
    ]


def _model(spec: RunSpec) -> str:
    about = spec.subject
    size = f"{about.image_size}x{about.image_size}x{about.in_channels}"
    return f"model       {about.name}, {size}, {many(about.num_classes, 'class')}"


def _epochs(spec: RunSpec) -> str:
    return f"{format_fraction(spec.length.epochs)} epoch{'' if spec.length.epochs == 1 else 's'}"


def _every(updates: int) -> str:
    return f"every {many(updates, 'update')}" if updates else "never"


def plot_schedule(spec: RunSpec, path: str) -> None:
    """The learning rate over the run as a picture; the file's ending chooses the format."""
    needed("matplotlib", "--plot", "plot").use("Agg")
    from matplotlib import pyplot

    total, points = spec.length.updates_total, 2000
    stride = max(1, total // points)
    updates = [*range(0, total, stride), total - 1] if total else [0]
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    axes.step(
        [u / spec.length.updates_per_epoch for u in updates], [spec.schedule.rate(u) for u in updates], where="post"
    )
    axes.set_xlabel("epoch")
    axes.set_ylabel("learning rate")
    axes.set_title(f"{spec.options.schedule.lr_schedule}, peak {spec.schedule.peak:.4g}, {many(total, 'update')}")
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as problem:
        raise UserError(f"cannot draw {path}: {problem}") from None
    finally:
        pyplot.close(figure)
