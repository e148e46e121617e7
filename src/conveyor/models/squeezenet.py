"""SqueezeNet 1.0 (Iandola et al. 2016), without norms; optional identity bypass. Names are torchvision's."""

import torch
from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.models.initialise import initialise
from conveyor.models.layers.layers import Block, GlobalMean
from conveyor.models.layers.stochastic import DropConnect, Dropout

# Squeezed and expanded channels (for each of 1x1 and 3x3) of fire 2 to 9; pools stand before fire 5 and fire 9.
_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
_POOL_BEFORE = (3, 7)


class Fire(Block):
    """1x1 squeeze, then 1x1 and 3x3 expansions side by side; `bypass` adds the input (it must have their width)."""

    def __init__(self, in_channels: int, squeezed: int, expanded: int, bypass: bool, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(in_channels, squeezed, 1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)
        self.bypass = bypass
        self.drop_path = DropConnect(drop_rate) if bypass and drop_rate > 0 else None

    def forward(self, x: Tensor) -> Tensor:
        squeezed = self.squeeze_activation(self.squeeze(x))
        left = self.expand1x1_activation(self.expand1x1(squeezed))
        right = self.expand3x3_activation(self.expand3x3(squeezed))
        out = torch.cat([left, right], 1)
        if self.drop_path is not None:
            out = self.drop_path(out)
        return out + x if self.bypass else out


class SqueezeNet(nn.Module):
    """Convolution, eight fire blocks, and a 1x1 convolution to the classes whose mean over H, W is the result."""

    def __init__(self, num_classes: int, in_channels: int, dropout: float, bypass: bool, survival: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(in_channels, 96, 7, stride=2), nn.ReLU(inplace=True), _pool()]
        channels = 96
        for index, (squeezed, expanded) in enumerate(_FIRES):
            if index in _POOL_BEFORE:
                layers.append(_pool())
            rate = (1.0 - survival) * (index + 1) / len(_FIRES)
            layers.append(Fire(channels, squeezed, expanded, bypass and channels == 2 * expanded, rate))
            channels = 2 * expanded
        self.features = nn.Sequential(*layers)
        head = nn.Conv2d(channels, num_classes, 1)
        self.classifier = nn.Sequential(Dropout(dropout), head, nn.ReLU(inplace=True), GlobalMean())

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def make(
    *,
    num_classes: int,
    in_channels: int,
    dropout: float = 0.5,
    bypass: bool = False,
    init: str = "torch",
    survival: float = 1.0,
) -> SqueezeNet:
    """A SqueezeNet; `bypass` adds the identity around fire 3, 5, 7 and 9, where the widths agree.

    `survival` is that of the last of these blocks: the others have nothing that could take their place.
    """
    if survival < 1 and not bypass:
        raise UserError("stochastic depth needs identities around the blocks of SqueezeNet: add --bypass.")
    model = SqueezeNet(num_classes, in_channels, dropout, bypass, survival)
    initialise(model, init, conv=lambda weight: nn.init.kaiming_uniform_(weight))
    if init == "torch":
        head = model.classifier[1]
        assert isinstance(head, nn.Conv2d)
        nn.init.normal_(head.weight, 0.0, 0.01)
    return model
