"""MobileNet v2 (Sandler et al. 2018) and v3 (Howard et al. 2019), with timm's module names."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.models.efficientnet import MobileNetwork
from conveyor.models.initialise import dense_normal_, initialise
from conveyor.models.layers.conv import spatial_conv
from conveyor.models.layers.layers import GlobalMean, conv
from conveyor.models.layers.mbconv import BlockPlan, make_block, repeated, round_filters, with_drop_rates
from conveyor.models.layers.norms import NormChoice, norm_act
from conveyor.models.layers.stochastic import Dropout

# Stages of (kernel, inner channels, output channels, SE, activation, stride).
_Row = tuple[int, int, int, bool, str, int]
_LARGE: tuple[tuple[_Row, ...], ...] = (
    ((3, 16, 16, False, "relu", 1),),
    ((3, 64, 24, False, "relu", 2), (3, 72, 24, False, "relu", 1)),
    ((5, 72, 40, True, "relu", 2), (5, 120, 40, True, "relu", 1), (5, 120, 40, True, "relu", 1)),
    (
        (3, 240, 80, False, "hardswish", 2),
        (3, 200, 80, False, "hardswish", 1),
        (3, 184, 80, False, "hardswish", 1),
        (3, 184, 80, False, "hardswish", 1),
    ),
    ((3, 480, 112, True, "hardswish", 1), (3, 672, 112, True, "hardswish", 1)),
    ((5, 672, 160, True, "hardswish", 2), (5, 960, 160, True, "hardswish", 1), (5, 960, 160, True, "hardswish", 1)),
)
_SMALL: tuple[tuple[_Row, ...], ...] = (
    ((3, 16, 16, True, "relu", 2),),
    ((3, 72, 24, False, "relu", 2), (3, 88, 24, False, "relu", 1)),
    ((5, 96, 40, True, "hardswish", 2), (5, 240, 40, True, "hardswish", 1), (5, 240, 40, True, "hardswish", 1)),
    ((5, 120, 48, True, "hardswish", 1), (5, 144, 48, True, "hardswish", 1)),
    ((5, 288, 96, True, "hardswish", 2), (5, 576, 96, True, "hardswish", 1), (5, 576, 96, True, "hardswish", 1)),
)
# (repeats, output channels, stride) of v2's stages; the first one does not expand.
_V2 = ((1, 16, 1), (2, 24, 2), (3, 32, 2), (4, 64, 2), (3, 96, 1), (3, 160, 2), (1, 320, 1))


class MobileNetV2(MobileNetwork):
    """The network with relu6 throughout."""


class ConvNormAct(nn.Module):
    """1x1 convolution, norm, hard swish: the last feature layer of v3."""

    def __init__(self, in_channels: int, out_channels: int, norm: NormChoice) -> None:
        super().__init__()
        self.conv = conv(in_channels, out_channels, 1, bias=norm.conv_bias)
        self.bn1 = norm.layer(out_channels)
        self.act = norm.activation(nn.Hardswish(), out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return norm_act(self.bn1, self.act, self.conv(x))


class MobileNetV3(nn.Module):
    """Stem, blocks, 1x1 convolution; then the mean, and after it the wide layer, which costs little on one pixel."""

    def __init__(
        self,
        plans: Sequence[Sequence[BlockPlan]],
        features: int,
        top: int,
        dropout: float,
        num_classes: int,
        in_channels: int,
    ) -> None:
        super().__init__()
        first, last = plans[0][0], plans[-1][-1]
        norm, stem = first.norm, first.in_channels
        self.conv_stem = spatial_conv(in_channels, stem, 3, 2, group_dim=None, bias=norm.conv_bias, same=first.same)
        self.bn1 = norm.layer(stem)
        self.act1 = norm.activation(nn.Hardswish(), stem)
        stages = [nn.Sequential(*(make_block(plan) for plan in stage)) for stage in plans]
        self.blocks = nn.Sequential(*stages, nn.Sequential(ConvNormAct(last.out_channels, features, norm)))
        self.global_pool = GlobalMean(keepdim=True)
        self.conv_head = nn.Conv2d(features, top, 1)
        self.act2 = nn.Hardswish()
        self.flatten = nn.Flatten()
        self.dropout = Dropout(dropout)
        self.classifier = nn.Linear(top, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(norm_act(self.bn1, self.act1, self.conv_stem(x)))
        x = self.act2(self.conv_head(self.global_pool(x)))
        return self.classifier(self.dropout(self.flatten(x)))


def _plans_v3(
    table: tuple[tuple[_Row, ...], ...], width: float, divisor: int, plan: Callable[..., BlockPlan]
) -> list[list[BlockPlan]]:
    plans: list[list[BlockPlan]] = []
    channels = round_filters(16 * width, divisor)
    for rows in table:
        stage = []
        for kernel, inner, out, squeeze, activation, stride in rows:
            expanded = round_filters(inner * width, divisor)
            block = plan(
                in_channels=channels,
                out_channels=round_filters(out * width, divisor),
                expanded=expanded,
                kernel=kernel,
                stride=stride,
                squeezed=round_filters(expanded // 4, divisor) if squeeze else 0,
                activation=activation,
                se_activation="relu",
                hard_gate=True,
            )
            stage.append(block)
            channels = block.out_channels
        plans.append(stage)
    return plans


def make(
    *,
    variant: str,
    num_classes: int,
    in_channels: int,
    norm: NormChoice,
    width_coefficient: float = 1.0,
    depth_divisor: int = 8,
    expand_ratio: int | None = None,
    group_dim: int = 1,
    dropout: float = 0.2,
    survival: float = 1.0,
    top_width: int | None = None,
    padding: str = "symmetric",
    init: str = "torch",
) -> MobileNetV2 | MobileNetV3:
    """A MobileNet; `variant` is v2, v3_small or v3_large. The expansion ratio can be chosen for v2 only."""
    same = padding == "same"
    plan = partial(BlockPlan, norm=norm, group_dim=group_dim, same=same)
    model: MobileNetV2 | MobileNetV3
    if variant == "v2":
        rows = [
            (
                3,
                repeats,
                round_filters(filters * width_coefficient, depth_divisor),
                (expand_ratio or 6) if number else 1,
                stride,
            )
            for number, (repeats, filters, stride) in enumerate(_V2)
        ]
        stem = round_filters(32 * width_coefficient, depth_divisor)
        plans = repeated(rows, stem, partial(plan, activation="relu6"))
        top = top_width or round_filters(1280 * max(1.0, width_coefficient), depth_divisor)
        model = MobileNetV2(
            with_drop_rates(plans, survival), stem_stride=2, top_width=top, activation="relu6", dropout=dropout,
            norm=norm, same=same, num_classes=num_classes, in_channels=in_channels,
        )  # fmt: skip
    else:
        if expand_ratio is not None:
            raise UserError("MobileNet v3 prescribes the expansion of each block: leave out expand_ratio.")
        table, default_top = (_LARGE, 1280) if variant == "v3_large" else (_SMALL, 1024)
        plans = _plans_v3(table, width_coefficient, depth_divisor, plan)
        features = 6 * plans[-1][-1].out_channels
        model = MobileNetV3(
            with_drop_rates(plans, survival), features, top_width or default_top, dropout, num_classes, in_channels
        )
    initialise(model, init, dense=dense_normal_, scale=2)
    if init == "torch" and isinstance(model, MobileNetV3):
        dense_normal_(model.conv_head.weight)
    return model
