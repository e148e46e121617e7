"""ResNet for large and small images, basic and bottleneck blocks (He et al. 2015), and ResNeXt (Xie et al. 2017).

Module names are the field's (conv1, bn1, layer1.0.conv2, downsample.0, fc), so its state dicts load as they are.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.models.initialise import initialise
from conveyor.models.layers.layers import Block, GlobalMean, PaddedShortcut, conv
from conveyor.models.layers.norms import NormChoice, norm_act
from conveyor.models.layers.stochastic import DropConnect


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What a ResNet's blocks have in common.

    shortcut: what is added to a block's result: A zero padding, B a projection (1x1 convolution and norm) where the
    shape changes, C a projection on every block. project_first: with B also on the first block of the first stage.
    inner_factor: the bottleneck's inner width in units of the plain one (2 for ResNeXt 32x4d).
    survival: stochastic depth (Huang et al. 2016): block l of L loses its residual branch with probability
    (1 - survival) l / L, for each sample.
    """

    norm: NormChoice
    shortcut: str
    project_first: bool
    stride_in_1x1: bool = False
    cardinality: int = 1
    inner_factor: float = 1.0
    survival: float = 1.0

    def drop_path(self, share: float) -> DropConnect | None:
        """What drops the residual branch of the block at `share` = l / L of the depth."""
        return DropConnect((1.0 - self.survival) * share) if self.survival < 1 else None

    def beside(self, in_channels: int, out_channels: int, stride: int, first_of_stage: bool) -> nn.Module | None:
        """The shortcut of one block; None is the identity."""
        changes = stride != 1 or in_channels != out_channels
        if self.shortcut == "A":
            return PaddedShortcut(in_channels, out_channels, stride) if changes else None
        if not (changes or self.shortcut == "C" or (self.project_first and first_of_stage)):
            return None
        projection = conv(in_channels, out_channels, 1, stride=stride, bias=self.norm.conv_bias)
        return nn.Sequential(projection, self.norm.layer(out_channels, activated=False))


class ResidualBlock(Block):
    """What both kinds of block share: the sum of branch and shortcut."""

    downsample: nn.Module | None
    drop_path: DropConnect | None

    def join(self, norm: nn.Module, act: nn.Module, branch: Tensor, beside: Tensor) -> Tensor:
        """act(drop(norm(branch)) + beside)."""
        if self.drop_path is None:
            return norm_act(norm, act, branch, beside)
        return act(self.drop_path(norm(branch)) + beside)


class BasicBlock(ResidualBlock):
    """act(bn2(conv2(act(bn1(conv1(x))))) + shortcut(x)), two 3x3 convolutions, the stride on the first."""

    def __init__(
        self, in_channels: int, width: int, stride: int, first_of_stage: bool, design: Design, depth: float = 1.0
    ) -> None:
        super().__init__()
        norm = design.norm
        self.conv1 = conv(in_channels, width, 3, stride=stride, bias=norm.conv_bias)
        self.bn1 = norm.layer(width)
        self.act1 = norm.activation(nn.ReLU(inplace=True), width)
        self.conv2 = conv(width, width, 3, bias=norm.conv_bias)
        self.bn2 = norm.layer(width, activated=False)
        self.downsample = design.beside(in_channels, width, stride, first_of_stage)
        self.drop_path = design.drop_path(depth)
        self.act2 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = norm_act(self.bn1, self.act1, self.conv1(x))
        beside = x if self.downsample is None else self.downsample(x)
        return self.join(self.bn2, self.act2, self.conv2(out), beside)

    @property
    def last_norm(self) -> nn.Module:
        return self.bn2


class Bottleneck(ResidualBlock):
    """1x1 to the inner width, 3x3 (grouped in ResNeXt), 1x1 to four times the plain width, and the shortcut.

    The stride is on the 3x3 (v1.5) unless `stride_in_1x1` (v1).
    """

    def __init__(
        self, in_channels: int, width: int, stride: int, first_of_stage: bool, design: Design, depth: float = 1.0
    ) -> None:
        super().__init__()
        norm = design.norm
        inner, outer = int(width * design.inner_factor), 4 * width
        first, second = (stride, 1) if design.stride_in_1x1 else (1, stride)
        self.conv1 = conv(in_channels, inner, 1, stride=first, bias=norm.conv_bias)
        self.bn1 = norm.layer(inner)
        self.act1 = norm.activation(nn.ReLU(inplace=True), inner)
        self.conv2 = conv(inner, inner, 3, stride=second, groups=design.cardinality, bias=norm.conv_bias)
        self.bn2 = norm.layer(inner)
        self.act2 = norm.activation(nn.ReLU(inplace=True), inner)
        self.conv3 = conv(inner, outer, 1, bias=norm.conv_bias)
        self.bn3 = norm.layer(outer, activated=False)
        self.downsample = design.beside(in_channels, outer, stride, first_of_stage)
        self.drop_path = design.drop_path(depth)
        self.act3 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = norm_act(self.bn1, self.act1, self.conv1(x))
        out = norm_act(self.bn2, self.act2, self.conv2(out))
        beside = x if self.downsample is None else self.downsample(x)
        return self.join(self.bn3, self.act3, self.conv3(out), beside)

    @property
    def last_norm(self) -> nn.Module:
        return self.bn3


class ResNet(nn.Module):
    """Stem, stages of blocks, global mean, dense layer: [N, in_channels, H, W] to [N, num_classes].

    Small images (`cifar`): a 3x3 stem without pooling; otherwise 7x7 with stride 2 and a 3x3 max pool with stride 2.
    """

    def __init__(
        self,
        layers: Sequence[int],
        width: int,
        bottleneck: bool,
        cifar: bool,
        design: Design,
        num_classes: int,
        in_channels: int,
    ) -> None:
        super().__init__()
        norm = design.norm
        kernel, stride = (3, 1) if cifar else (7, 2)
        self.conv1 = conv(in_channels, width, kernel, stride=stride, bias=norm.conv_bias)
        self.bn1 = norm.layer(width)
        self.act1 = norm.activation(nn.ReLU(inplace=True), width)
        self.maxpool = None if cifar else nn.MaxPool2d(3, stride=2, padding=1)
        channels, stages = width, OrderedDict[str, nn.Module]()
        for stage, repeats in enumerate(layers):
            stage_width = width * 2**stage
            stage_blocks: list[nn.Module] = []
            for index in range(repeats):
                block_stride = 2 if stage > 0 and index == 0 else 1
                make_block = Bottleneck if bottleneck else BasicBlock
                depth = (sum(layers[:stage]) + index + 1) / sum(layers)
                stage_blocks.append(make_block(channels, stage_width, block_stride, index == 0, design, depth))
                channels = stage_width * (4 if bottleneck else 1)
            stages[f"layer{stage + 1}"] = nn.Sequential(*stage_blocks)
        self.stage_names = tuple(stages)
        for name, module in stages.items():
            self.add_module(name, module)
        self.avgpool = GlobalMean()
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = norm_act(self.bn1, self.act1, self.conv1(x))
        if self.maxpool is not None:
            x = self.maxpool(x)
        for name in self.stage_names:
            x = getattr(self, name)(x)
        return self.fc(self.avgpool(x))


def zero_last_gammas(model: nn.Module, rule: str) -> None:
    """Start residual branches at zero, so that a block is its shortcut at first.

    rule: none; all (the last norm of every block); unprojected (of blocks without a projection); projection (as
    unprojected, and in blocks with a projection the projection's norm instead of the last one).
    """
    if rule == "none":
        return
    for block in model.modules():
        if not isinstance(block, (BasicBlock, Bottleneck)):
            continue
        projection = block.downsample if isinstance(block.downsample, nn.Sequential) else None
        target: nn.Module | None = block.last_norm
        if projection is not None and rule != "all":
            target = projection[1] if rule == "projection" else None
        weight = getattr(target, "weight", None)
        if weight is not None:
            nn.init.zeros_(weight)


def make(
    *,
    layers: Sequence[int],
    bottleneck: bool,
    num_classes: int,
    in_channels: int,
    norm: NormChoice,
    cifar: bool = False,
    wide: bool = False,
    shortcut: str | None = None,
    project_first: bool = False,
    stride_in_1x1: bool = False,
    zero_init_gamma: str = "none",
    init: str = "torch",
    survival: float = 1.0,
    resnext: bool = False,
    group_dim: int | None = None,
    cardinality: int | None = None,
) -> ResNet:
    """A ResNet. Shortcut: A for basic blocks on small images, else B, unless said otherwise.

    ResNeXt: the 3x3 convolution works in `cardinality` groups of `group_dim` channels (32x4d by default), so that inner
    width = plain width x group_dim x cardinality / stem width: the factor is 2 for 32x4d with a stem of 64, and 8 in the
    narrow net for small images, whose stem is 16.
    """
    if wide and not (cifar and bottleneck):
        raise UserError(
            "`wide` exists for the bottleneck nets for small images only (cifar_bottleneck and cifar_resnext)."
        )
    if not resnext and (group_dim or cardinality):
        raise UserError("group_dim and cardinality are those of a ResNeXt: choose one of resnext14 to resnext152.")
    shortcut = shortcut or ("A" if cifar and not bottleneck else "B")
    if project_first and shortcut == "A":
        raise UserError("project_first needs shortcut B: shortcut A has no projection.")
    width = 64 if wide or not cifar else 16
    groups = (cardinality or 32) if resnext else 1
    design = Design(
        norm=norm,
        shortcut=shortcut,
        project_first=project_first,
        stride_in_1x1=stride_in_1x1,
        cardinality=groups,
        inner_factor=(group_dim or 4) * groups / width if resnext else 1.0,
        survival=survival,
    )
    model = ResNet(layers, width, bottleneck, cifar, design, num_classes, in_channels)
    initialise(model, init)
    zero_last_gammas(model, zero_init_gamma)
    return model
