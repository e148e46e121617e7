"""EfficientNet B0 to B7, the small-image variant, and EfficientNet-Lite (Tan and Le 2019).

Module names are timm's (conv_stem, bn1, blocks.2.0.conv_dw, conv_head, bn2, classifier).
"""

import math
from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from conveyor.models.initialise import dense_uniform_out_, initialise
from conveyor.models.layers.conv import spatial_conv
from conveyor.models.layers.layers import GlobalMean, conv
from conveyor.models.layers.mbconv import (
    BlockPlan,
    make_activation,
    make_block,
    repeated,
    round_filters,
    with_drop_rates,
)
from conveyor.models.layers.norms import NormChoice, norm_act
from conveyor.models.layers.stochastic import Dropout

# (kernel, repeats, output channels, expands, stride) of the seven stages before scaling.
_STAGES = (
    (3, 1, 16, False, 1),
    (3, 2, 24, True, 2),
    (5, 2, 40, True, 2),
    (3, 3, 80, True, 2),
    (5, 3, 112, True, 1),
    (5, 4, 192, True, 2),
    (3, 1, 320, True, 1),
)


class MobileNetwork(nn.Module):
    """Stem, stages of inverted residual blocks, 1x1 convolution, global mean, dropout, dense layer."""

    def __init__(
        self,
        plans: Sequence[Sequence[BlockPlan]],
        *,
        stem_stride: int,
        top_width: int,
        activation: str,
        dropout: float,
        norm: NormChoice,
        same: bool,
        num_classes: int,
        in_channels: int,
    ) -> None:
        super().__init__()
        stem, last = plans[0][0].in_channels, plans[-1][-1].out_channels
        self.conv_stem = spatial_conv(in_channels, stem, 3, stem_stride, group_dim=None, bias=norm.conv_bias, same=same)
        self.bn1 = norm.layer(stem)
        self.act1 = norm.activation(make_activation(activation), stem)
        self.blocks = nn.Sequential(*(nn.Sequential(*(make_block(plan) for plan in stage)) for stage in plans))
        self.conv_head = conv(last, top_width, 1, bias=norm.conv_bias)
        self.bn2 = norm.layer(top_width)
        self.act2 = norm.activation(make_activation(activation), top_width)
        self.global_pool = GlobalMean()
        self.dropout = Dropout(dropout)
        self.classifier = nn.Linear(top_width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(norm_act(self.bn1, self.act1, self.conv_stem(x)))
        x = self.global_pool(norm_act(self.bn2, self.act2, self.conv_head(x)))
        return self.classifier(self.dropout(x))


class EfficientNet(MobileNetwork):
    """The network with seven stages."""


def make(
    *,
    num_classes: int,
    in_channels: int,
    norm: NormChoice,
    width_coefficient: float = 1.0,
    depth_coefficient: float = 1.0,
    depth_divisor: int = 8,
    expand_ratio: int = 6,
    group_dim: int = 1,
    squeeze_excite: bool | None = None,
    activation: str | None = None,
    dropout: float = 0.2,
    survival: float = 0.8,
    top_width: int = 1280,
    padding: str | None = None,
    init: str = "torch",
    cifar: bool = False,
    lite: bool = False,
) -> EfficientNet:
    """An EfficientNet.

    group_dim: channels per group of the k x k convolutions (1: depthwise). Widths (also `top_width`) are multiplied
    by width_coefficient and rounded to multiples of depth_divisor; repeats are multiplied by depth_coefficient and
    rounded up. cifar: stem and second stage keep the image size. lite: no SE, relu6, a stem of 32 and a top of 1280
    whatever the width, first and last stage not repeated more often, TensorFlow's padding (its weights come from there).
    """
    squeeze = not lite if squeeze_excite is None else squeeze_excite
    activation = activation or ("relu6" if lite else "swish")
    same = (padding or ("same" if lite else "symmetric")) == "same"

    def width(filters: int) -> int:
        return round_filters(filters * width_coefficient, depth_divisor)

    rows = [
        (
            kernel,
            repeats if lite and number in (0, len(_STAGES) - 1) else math.ceil(depth_coefficient * repeats),
            width(filters),
            expand_ratio if expands else 1,
            1 if cifar and number == 1 else stride,
        )
        for number, (kernel, repeats, filters, expands, stride) in enumerate(_STAGES)
    ]
    plan = partial(
        BlockPlan, activation=activation, norm=norm, group_dim=group_dim, same=same, se_activation=activation
    )
    plans = repeated(rows, 32 if lite else width(32), plan, squeeze=0.25 if squeeze else 0.0)
    model = EfficientNet(
        with_drop_rates(plans, survival),
        stem_stride=1 if cifar else 2,
        top_width=top_width if lite else width(top_width),
        activation=activation,
        dropout=dropout,
        norm=norm,
        same=same,
        num_classes=num_classes,
        in_channels=in_channels,
    )
    initialise(model, init, dense=dense_uniform_out_, scale=2)
    return model
