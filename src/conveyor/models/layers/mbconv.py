"""Inverted residual blocks with squeeze-and-excitation: the parts of EfficientNet and MobileNet.

Module names are timm's (conv_pw, bn1, conv_dw, bn2, se.conv_reduce, conv_pwl, bn3).
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.models.layers.conv import spatial_conv
from conveyor.models.layers.layers import Block, GlobalMean, conv
from conveyor.models.layers.norms import NormChoice, norm_act
from conveyor.models.layers.stochastic import DropConnect

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    # Only relu's gradient follows from its result; the others in place would have autograd copy their input first.
    "swish": nn.SiLU,
    "relu": lambda: nn.ReLU(inplace=True),
    "relu6": nn.ReLU6,
    "hardswish": nn.Hardswish,
}


def make_activation(name: str) -> nn.Module:
    """A fresh activation module."""
    if name not in _ACTIVATIONS:
        raise UserError(f"there is no activation {name!r}: choose from {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[name]()


def round_filters(filters: float, divisor: int = 8) -> int:
    """The multiple of `divisor` nearest to `filters`, at least one, and not below 90 % of `filters`."""
    rounded = max(divisor, int(filters + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * filters else rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """One block: `expanded` inner channels, `squeezed` channels inside SE (0: no SE), `drop_rate` of drop connect."""

    in_channels: int
    out_channels: int
    expanded: int
    kernel: int
    stride: int
    squeezed: int
    activation: str
    norm: NormChoice
    group_dim: int = 1
    same: bool = False
    drop_rate: float = 0.0
    se_activation: str = "swish"
    hard_gate: bool = False

    @property
    def has_skip(self) -> bool:
        return self.stride == 1 and self.in_channels == self.out_channels


class SqueezeExcite(nn.Module):
    """x * gate(conv_expand(act(conv_reduce(mean of x over H, W)))), a scale per sample and channel."""

    def __init__(self, channels: int, squeezed: int, activation: str, hard_gate: bool) -> None:
        super().__init__()
        self.mean = GlobalMean(keepdim=True)
        self.conv_reduce = nn.Conv2d(channels, squeezed, 1)
        self.act1 = make_activation(activation)
        self.conv_expand = nn.Conv2d(squeezed, channels, 1)
        self.gate: nn.Module = nn.Hardsigmoid() if hard_gate else nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.conv_expand(self.act1(self.conv_reduce(self.mean(x))))
        return x * self.gate(scale)


class _MobileBlock(Block):
    """What both kinds of block share: the optional SE and the residual sum."""

    se: nn.Module | None
    drop_path: nn.Module | None

    def _finish(self, plan: BlockPlan, channels: int) -> None:
        squeezed = plan.squeezed
        self.se = SqueezeExcite(channels, squeezed, plan.se_activation, plan.hard_gate) if squeezed else None
        self.has_skip = plan.has_skip
        self.drop_path = DropConnect(plan.drop_rate) if plan.has_skip and plan.drop_rate > 0 else None

    def _join(self, out: Tensor, x: Tensor) -> Tensor:
        if not self.has_skip:
            return out
        if self.drop_path is not None:
            out = self.drop_path(out)
        return out + x


class DepthwiseSeparable(_MobileBlock):
    """Grouped k x k convolution, SE, 1x1 projection: the block without expansion."""

    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        norm, channels = plan.norm, plan.in_channels
        self.conv_dw = spatial_conv(
            channels, channels, plan.kernel, plan.stride, group_dim=plan.group_dim, bias=norm.conv_bias, same=plan.same
        )
        self.bn1 = norm.layer(channels)
        self.act1 = norm.activation(make_activation(plan.activation), channels)
        self._finish(plan, channels)
        self.conv_pw = conv(channels, plan.out_channels, 1, bias=norm.conv_bias)
        self.bn2 = norm.layer(plan.out_channels, activated=False)

    def forward(self, x: Tensor) -> Tensor:
        out = norm_act(self.bn1, self.act1, self.conv_dw(x))
        if self.se is not None:
            out = self.se(out)
        return self._join(self.bn2(self.conv_pw(out)), x)


class InvertedResidual(_MobileBlock):
    """1x1 expansion, grouped k x k convolution, SE, 1x1 projection without activation; identity skip if it fits."""

    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        norm, channels = plan.norm, plan.expanded
        self.conv_pw = conv(plan.in_channels, channels, 1, bias=norm.conv_bias)
        self.bn1 = norm.layer(channels)
        self.act1 = norm.activation(make_activation(plan.activation), channels)
        self.conv_dw = spatial_conv(
            channels, channels, plan.kernel, plan.stride, group_dim=plan.group_dim, bias=norm.conv_bias, same=plan.same
        )
        self.bn2 = norm.layer(channels)
        self.act2 = norm.activation(make_activation(plan.activation), channels)
        self._finish(plan, channels)
        self.conv_pwl = conv(channels, plan.out_channels, 1, bias=norm.conv_bias)
        self.bn3 = norm.layer(plan.out_channels, activated=False)

    def forward(self, x: Tensor) -> Tensor:
        out = norm_act(self.bn1, self.act1, self.conv_pw(x))
        out = norm_act(self.bn2, self.act2, self.conv_dw(out))
        if self.se is not None:
            out = self.se(out)
        return self._join(self.bn3(self.conv_pwl(out)), x)


def make_block(plan: BlockPlan) -> nn.Module:
    """The block of a plan: without expansion if the inner width is the input's."""
    return DepthwiseSeparable(plan) if plan.expanded == plan.in_channels else InvertedResidual(plan)


def repeated(
    rows: Iterable[tuple[int, int, int, int, int]],
    channels: int,
    plan: Callable[..., BlockPlan],
    squeeze: float = 0.0,
) -> list[list[BlockPlan]]:
    """Stages from rows of (kernel, repeats, output channels, expansion, stride), behind a stem of `channels`.

    The stride is the first block's; `squeeze` is the width inside SE as a share of a block's input, 0 for none.
    """
    plans: list[list[BlockPlan]] = []
    for kernel, repeats, out_channels, ratio, stride in rows:
        plans.append([])
        for index in range(repeats):
            squeezed = max(1, int(channels * squeeze)) if squeeze else 0
            block = plan(
                in_channels=channels, out_channels=out_channels, expanded=channels * ratio, kernel=kernel,
                stride=1 if index else stride, squeezed=squeezed,
            )  # fmt: skip
            plans[-1].append(block)
            channels = out_channels
    return plans


def with_drop_rates(plans: list[list[BlockPlan]], survival: float) -> list[list[BlockPlan]]:
    """Drop connect grows linearly with depth: (1 - survival) * index / number of blocks, index from 0."""
    total = sum(len(stage) for stage in plans)
    index = itertools.count()
    return [[replace(plan, drop_rate=(1.0 - survival) * next(index) / total) for plan in stage] for stage in plans]
