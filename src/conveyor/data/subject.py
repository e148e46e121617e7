"""The network of a run and its input: one definition for training, validation, inference and planning. No torch."""

from dataclasses import dataclass

from conveyor.data import catalogue, pretrained
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.photo.centre import resized_side
from conveyor.errors import UserError
from conveyor.models import catalogue as models
from conveyor.models import library_models, sources
from conveyor.models import user_module as own_models
from conveyor.options import Options

SMALL_IMAGE = 64
"""Images up to this size get a small network when none is named."""
OWN_DATA = "own"
"""What a run on data of the caller's own calls them."""
DEFAULT_SIZE, DEFAULT_CLASSES = 224, 1000
"""Of a user's own model when no data set is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A network by name, its input [in_channels, image_size, image_size] and its `num_classes` outputs."""

    name: str
    image_size: int
    num_classes: int
    in_channels: int
    """Channels that the network takes; grey images are repeated for three, those beyond an image's are zero."""
    channels: int
    """Channels of an image: photographs are read as grey for a network that takes one."""
    normalization: str
    resize: int | None
    """Shorter side of a photograph before the central crop; None: the stored images are resized to `image_size`."""
    interpolation: str
    """How a photograph is resized."""

    def shape(self, batch: int) -> tuple[int, int, int, int]:
        """[N, C, H, W] of a batch of the network's input."""
        return batch, self.in_channels, self.image_size, self.image_size

    def arguments(self) -> dict[str, object]:
        """What `models.build` needs."""
        return {"name": self.name, "num_classes": self.num_classes, "in_channels": self.in_channels, "image_size": self.image_size}  # fmt: skip


def subject(options: Options, info: DatasetInfo | None = None, own: str | None = None) -> Subject:
    """What `options` say of the network; `own` is the name of a caller's own module.

    What they leave open comes from the data set `info`, and for photographs the size from the model. Without `info` (a
    plan for no particular data) size and classes are the model's own, for photographs in colour.
    """
    chosen = options.model
    small = info is not None and info.image_size <= SMALL_IMAGE
    name = own or chosen.model or ("resnet8" if small else "resnet50")
    library = own is None and library_models.is_library(name)
    mine = library or own is not None or ":" in name or name in own_models.registered()
    entry = None if mine else models.entry(name)
    if info is None:
        size, classes, channels = DEFAULT_SIZE, DEFAULT_CLASSES, 3
        classes = entry.num_classes if entry else classes
    else:
        size, classes, channels = info.image_size, info.num_classes, info.channels
    if entry is not None and (info is None or info.kind == "files"):
        size = entry.image_size
    taken = library_models.COLOURS if library and name.startswith("torchvision/") else channels
    size, in_channels = chosen.image_size or size, chosen.in_channels or taken
    photographs = info is None or info.kind == "files"
    return Subject(
        name=name,
        image_size=size,
        num_classes=chosen.num_classes or classes,
        in_channels=in_channels,
        channels=1 if photographs and in_channels == 1 else channels,
        normalization=_normalization(options, info, name),
        resize=resized_side(options.data, size) if photographs else None,
        interpolation=(options.data.interpolation if photographs else None) or "bilinear",
    )


def _normalization(options: Options, info: DatasetInfo | None, name: str) -> str:
    """As asked, else the data set's, on photographs the network's own where it has one."""
    default = "imagenet" if info is None else info.default_normalization
    if default == "imagenet" and (models.canonical(name) or "").startswith("efficientnet_lite"):
        default = "centred"
    return options.data.normalization or default


def completed_subject(
    options: Options, info: DatasetInfo | None, own: str | None = None
) -> tuple[Options, Subject, tuple[str, ...]]:
    """The options with what the source of their weights uses, their subject, and notes for the user about both."""
    told: tuple[str, ...] = ()
    if own is None:
        options, told = sources.completed(
            pretrained.completed(options), photographs=info is None or info.kind == "files"
        )
    return options, subject(options, info, own), told


def planned(options: Options) -> Subject:
    """The subject of a plan: of the data set that the options name, else of the model alone."""
    named = options.data.data is not None or catalogue.data_dir(options.data) is not None
    return completed_subject(options, catalogue.info(options.data) if named else None)[1]


def info_without_files(options: Options) -> DatasetInfo:
    """The data set of a trained model; where its files are absent, the numbers come from the options."""
    try:
        return catalogue.info(options.data)
    except UserError:
        if options.model.num_classes is None:
            raise
    own = options.data.data == OWN_DATA or catalogue.is_code(options.data.data)
    return DatasetInfo(
        name="folder",
        train_images=0,
        validation_images=0,
        num_classes=options.model.num_classes,
        image_size=options.model.image_size or DEFAULT_SIZE,
        channels=min(options.model.in_channels or 3, 3),
        kind="memory" if own else "files",
        default_normalization="unit" if own else "imagenet",
    )
