"""Which network is trained, and the choices its family leaves open."""

from dataclasses import dataclass

from conveyor.options.field import option


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The network; an option left out takes the value that the model's family prescribes."""

    model: str | None = option(
        None,
        "Model name (see `conveyor models`), timm/NAME, torchvision/NAME or FILE.py:FUNCTION; default: resnet8 for small images, else resnet50.",
        metavar="NAME",
        aliases=("arch",),
    )
    image_size: int | None = option(
        None,
        "Height and width of the input; default: by model and data.",
        unit="pixels",
        minimum=1,
        aliases=("img_size",),
    )
    num_classes: int | None = option(None, "Classes; default: by data set.", minimum=1)
    in_channels: int | None = option(None, "Input channels; default: by data set. Extra channels are zero.", minimum=1)
    weights: str | None = option(None, "Start from these weights: safetensors, a plain torch state dict, or a run.")
    replace_head: bool = option(False, "Accept --weights with another number of classes and start with a new head.")
    pretrained: str | None = option(
        None,
        "Fine-tune published weights: a name of timm's (tf_efficientnet_lite0, timm/convnext_atto), torchvision/NAME, an address or a file; looked "
        "for in --weights-dir and the caches of this machine, else fetched. Brings its model, its preprocessing, a new head "
        "and gentle rates.",
        metavar="NAME",
    )
    weights_dir: str | None = option(
        None, "Folder with files of weights that --pretrained names.", metavar="DIR", changes_result=False
    )

    norm: str | None = option(
        None,
        "Normalisation layers: batch, group, proxy (group with proxy norm) or none.",
        choices=("batch", "group", "proxy", "none"),
    )
    norm_groups: int | None = option(None, "Groups of group norm (capped at the channel count).", minimum=1)
    norm_group_channels: int | None = option(
        None, "Channels per group of group norm, instead of --norm-groups.", minimum=1
    )
    norm_epsilon: float | None = option(None, "Epsilon of the norms.", minimum=0.0)
    norm_momentum: float | None = option(
        None,
        "Share of the new statistics in batch norm's running ones (0.1: running = 0.9 running + 0.1 new).",
        minimum=0.0,
        maximum=1.0,
    )
    stable_norm: bool = option(False, "Norm statistics in two passes and float32.")
    bn_span: int = option(1, "Batch-norm statistics over this many neighbouring replicas.", minimum=1)
    zero_init_gamma: str | None = option(
        None,
        "Which last norms of residual blocks start at zero: none, all, unprojected (blocks without a projection), "
        "or projection (also the projection's norm).",
        choices=("none", "all", "unprojected", "projection"),
    )
    init: str | None = option(
        None,
        "Initialisation: torch (the field's defaults), tensorflow (variance scaling, truncated normal) or glorot-channels.",
        choices=("torch", "tensorflow", "glorot-channels"),
    )
    shortcut: str | None = option(
        None, "Residual shortcut where the shape changes: A (zero padding), B or C.", choices=("A", "B", "C")
    )
    project_first: bool | None = option(None, "Projection also in the first stage of basic ResNets.")
    stride_in_1x1: bool | None = option(
        None, "Bottleneck stride on the first 1x1 convolution (v1) instead of the 3x3 (v1.5)."
    )
    group_dim: int | None = option(
        None, "Channels per convolution group (EfficientNet: 1 is depthwise; ResNeXt: 4).", minimum=1
    )
    cardinality: int | None = option(None, "Convolution groups of ResNeXt.", minimum=1)
    wide: bool | None = option(None, "The wide variant of the CIFAR bottleneck series.")
    expand_ratio: int | None = option(None, "Expansion ratio of EfficientNet and MobileNet blocks.", minimum=1)
    squeeze_excite: bool | None = option(None, "Squeeze-and-excitation in EfficientNet.")
    activation: str | None = option(None, "Activation of EfficientNet.", choices=("swish", "relu"))
    dropout: float | None = option(None, "Dropout before the classifier.", minimum=0.0, below=1.0)
    survival: float | None = option(
        None,
        "Stochastic depth: the probability with which the last residual block is kept; 1 is off.",
        minimum=0.0,
        maximum=1.0,
    )
    width_coefficient: float | None = option(None, "Width multiplier.", above=0.0)
    depth_coefficient: float | None = option(None, "Depth multiplier.", above=0.0)
    depth_divisor: int | None = option(None, "Channel counts are rounded to multiples of this.", minimum=1)
    top_width: int | None = option(None, "Channels of the last convolution of EfficientNet.", minimum=1)
    padding: str | None = option(
        None,
        "Padding of strided EfficientNet and MobileNet convolutions: symmetric, or same (TensorFlow's, for weights from there).",
        choices=("symmetric", "same"),
    )
    bypass: bool | None = option(None, "Identity around the SqueezeNet fire blocks whose widths agree.")
    proxy_epsilon: float | None = option(None, "Epsilon of proxy norm.", minimum=0.0)
