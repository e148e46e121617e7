"""A small network that learns CIFAR-10 in a few epochs: whitened input, three groups of two convolutions.

The shape is that of the public speed records for CIFAR-10 (Jordan 2024): a fixed convolution that whitens 2x2 patches,
groups of convolution - pool - norm - GELU - convolution - norm - GELU, a global maximum and a dense layer without bias.
Norms have no scale of their own, and half of the filters of each convolution start as the identity.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from conveyor.models.layers.layers import Block, conv
from conveyor.models.layers.norms import NormChoice

PATCH = 2
PATCH_MOMENTS = {
    (0, 0): (0.99636, 0.92479, 0.91263, 0.86116),
    (0, 1): (0.90642, 0.83901, 0.82773, 0.77964),
    (0, 2): (0.78205, 0.72401, 0.71395, 0.67294),
    (1, 1): (0.99939, 0.92776, 0.91621, 0.86494),
    (1, 2): (0.90802, 0.84567, 0.83511, 0.79069),
    (2, 2): (0.99811, 0.93764, 0.92732, 0.88403),
}
"""Second moments of CIFAR-10's normalised pixels for two channels, at the offsets (0, 0), (0, 1), (1, 0), (1, 1).

Measured on the first 5,000 training images and averaged over mirrored offsets, as those of photographs are nearly
symmetric. The whitening made of them leaves correlations of at most 0.022 between the filters' outputs.
"""
WHITENING_EPSILON = 5e-4


def patch_covariance(channels: int) -> Tensor:
    """float64 [4 C, 4 C] for patches [C, 2, 2]; channels beyond RGB, or a single one, count as independent greys."""
    size = PATCH * PATCH
    whole = torch.zeros(channels, size, channels, size, dtype=torch.float64)
    for one in range(channels):
        for other in range(channels):
            if channels == 3:
                moments = PATCH_MOMENTS[min(one, other), max(one, other)]
            elif one == other:
                moments = PATCH_MOMENTS[1, 1]
            else:
                continue
            for place in range(size):
                for second in range(size):
                    down, right = abs(place // PATCH - second // PATCH), abs(place % PATCH - second % PATCH)
                    whole[one, place, other, second] = moments[2 * down + right]
    return whole.reshape(channels * size, channels * size)


def whitening_filters(channels: int) -> Tensor:
    """[8 C, C, 2, 2]: the eigenvectors of the patches' covariance over the roots of their eigenvalues, and their negatives."""
    values, vectors = torch.linalg.eigh(patch_covariance(channels))
    filters = vectors.mT / torch.sqrt(values + WHITENING_EPSILON).unsqueeze(1)
    return torch.cat([filters, -filters]).reshape(-1, channels, PATCH, PATCH).float()


class Group(Block):
    """GELU(norm2(conv2(GELU(norm1(pool(conv1(x))))))): [N, C, H, W] to [N, width, H // 2, W // 2]."""

    def __init__(self, in_channels: int, width: int, norm: NormChoice) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, width, 3, bias=norm.conv_bias)
        self.pool = nn.MaxPool2d(2)
        self.norm1 = norm.layer(width)
        self.act1 = norm.activation(nn.GELU(), width)
        self.conv2 = conv(width, width, 3, bias=norm.conv_bias)
        self.norm2 = norm.layer(width)
        self.act2 = norm.activation(nn.GELU(), width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.norm1(self.pool(self.conv1(x))))
        return self.act2(self.norm2(self.conv2(x)))


class FastNet(nn.Module):
    """[N, in_channels, H, W] to [N, num_classes]; H and W of at least 9 pixels."""

    def __init__(self, widths: Sequence[int], num_classes: int, in_channels: int, norm: NormChoice) -> None:
        super().__init__()
        whitened = 2 * in_channels * PATCH * PATCH
        self.whiten = nn.Conv2d(in_channels, whitened, PATCH)
        self.whiten.weight.requires_grad_(False)
        self.act = nn.GELU()
        channels, groups = whitened, []
        for width in widths:
            groups.append(Group(channels, width, norm))
            channels = width
        self.groups = nn.Sequential(*groups)
        self.maximum = nn.AdaptiveMaxPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(channels, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.groups(self.act(self.whiten(x)))
        return self.head(self.flatten(self.maximum(x)))


@torch.no_grad()
def _initialise(model: FastNet) -> None:
    """Identity filters first, torch's own random ones for the rest; logits start with a deviation of about 1 / sqrt(C)."""
    if model.head.weight.is_meta:
        return
    model.whiten.weight.copy_(whitening_filters(model.whiten.in_channels))
    assert model.whiten.bias is not None
    nn.init.zeros_(model.whiten.bias)
    for module in model.groups.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.dirac_(module.weight[: module.in_channels])
    nn.init.normal_(model.head.weight, std=1.0 / model.head.in_features)


def make(*, num_classes: int, in_channels: int, norm: NormChoice, widths: Sequence[int] = (64, 256, 256)) -> FastNet:
    """The network; the norms' scales are fixed at 1, since the next convolution can scale as well."""
    model = FastNet(widths, num_classes, in_channels, norm)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.requires_grad_(False)
    _initialise(model)
    return model
