"""The published architectures written out as functions, independent of the package, under torchvision's names.

A parameter is made at its first use, so running a function also gives a complete state dict.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


class Book:
    """The state dict that grows as the functions ask for parameters."""

    def __init__(self, seed: int = 0, eps: float = 1e-5) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.state: dict[str, Tensor] = {}
        self.eps = eps

    def get(self, name: str, *shape: int, scale: float = 1.0, offset: float = 0.0) -> Tensor:
        if name not in self.state:
            self.state[name] = torch.randn(shape, generator=self.generator) * scale + offset
        return self.state[name]

    def conv(
        self, x: Tensor, name: str, out: int, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> Tensor:
        inner = x.shape[1] // groups
        weight = self.get(f"{name}.weight", out, inner, kernel, kernel, scale=(2 / (inner * kernel * kernel)) ** 0.5)
        shift = self.get(f"{name}.bias", out, scale=0.1) if bias else None
        return F.conv2d(x, weight, shift, stride, (kernel - 1) // 2, groups=groups)

    def norm(self, x: Tensor, name: str) -> Tensor:
        channels = x.shape[1]
        weight = self.get(f"{name}.weight", channels, scale=0.1, offset=1.0).view(1, -1, 1, 1)
        bias = self.get(f"{name}.bias", channels, scale=0.1).view(1, -1, 1, 1)
        mean = self.get(f"{name}.running_mean", channels, scale=0.1).view(1, -1, 1, 1)
        if f"{name}.running_var" not in self.state:
            self.state[f"{name}.running_var"] = torch.rand(channels, generator=self.generator) + 0.5
        var = self.state[f"{name}.running_var"].view(1, -1, 1, 1)
        self.state[f"{name}.num_batches_tracked"] = torch.tensor(7)
        return (x - mean) / torch.sqrt(var + self.eps) * weight + bias

    def dense(self, x: Tensor, name: str, out: int) -> Tensor:
        weight = self.get(f"{name}.weight", out, x.shape[1], scale=x.shape[1] ** -0.5)
        return x @ weight.T + self.get(f"{name}.bias", out, scale=0.1)


def resnet(
    book: Book, x: Tensor, layers: tuple[int, ...], classes: int, width_factor: int = 1, groups: int = 1
) -> Tensor:
    """Bottleneck ResNet v1.5, or ResNeXt with width_factor 2 and 32 groups."""
    x = F.relu(book.norm(book.conv(x, "conv1", 64, 7, 2), "bn1"))
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, repeats in enumerate(layers):
        for block in range(repeats):
            name, plain = f"layer{stage + 1}.{block}", 64 << stage
            stride = 2 if stage and block == 0 else 1
            y = F.relu(book.norm(book.conv(x, f"{name}.conv1", plain * width_factor, 1), f"{name}.bn1"))
            y = book.conv(y, f"{name}.conv2", plain * width_factor, 3, stride, groups)
            y = F.relu(book.norm(y, f"{name}.bn2"))
            y = book.norm(book.conv(y, f"{name}.conv3", 4 * plain, 1), f"{name}.bn3")
            if block == 0:
                x = book.norm(book.conv(x, f"{name}.downsample.0", 4 * plain, 1, stride), f"{name}.downsample.1")
            x = F.relu(x + y)
    return book.dense(x.mean((2, 3)), "fc", classes)


def efficientnet_b0(book: Book, x: Tensor, classes: int) -> Tensor:
    """MBConv rows of the paper's table 1: expansion, kernel, stride, channels, repeats."""
    rows = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3)]
    rows += [(6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)]
    x = F.silu(book.norm(book.conv(x, "features.0.0", 32, 3, 2), "features.0.1"))
    for stage, (ratio, kernel, first_stride, channels, repeats) in enumerate(rows, 1):
        for index in range(repeats):
            prefix, step, entry = f"features.{stage}.{index}.block", 0, x
            stride, inner = first_stride if index == 0 else 1, x.shape[1] * ratio
            if ratio != 1:
                x = F.silu(book.norm(book.conv(x, f"{prefix}.0.0", inner, 1), f"{prefix}.0.1"))
                step = 1
            x = book.conv(x, f"{prefix}.{step}.0", inner, kernel, stride, groups=inner)
            x = F.silu(book.norm(x, f"{prefix}.{step}.1"))
            squeezed = book.conv(
                x.mean((2, 3), keepdim=True), f"{prefix}.{step + 1}.fc1", entry.shape[1] // 4, 1, bias=True
            )
            x = x * torch.sigmoid(book.conv(F.silu(squeezed), f"{prefix}.{step + 1}.fc2", inner, 1, bias=True))
            x = book.norm(book.conv(x, f"{prefix}.{step + 2}.0", channels, 1), f"{prefix}.{step + 2}.1")
            if stride == 1 and channels == entry.shape[1]:
                x = x + entry
    x = F.silu(book.norm(book.conv(x, "features.8.0", 1280, 1), "features.8.1"))
    return book.dense(x.mean((2, 3)), "classifier.1", classes)


def mobilenet_v2(book: Book, x: Tensor, classes: int) -> Tensor:
    """The paper's table 2: expansion, channels, repeats, stride."""
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    x = F.relu6(book.norm(book.conv(x, "features.0.0", 32, 3, 2), "features.0.1"))
    number = 0
    for ratio, channels, repeats, first_stride in rows:
        for index in range(repeats):
            number += 1
            prefix, step, entry = f"features.{number}.conv", 0, x
            stride, inner = first_stride if index == 0 else 1, x.shape[1] * ratio
            if ratio != 1:
                x = F.relu6(book.norm(book.conv(x, f"{prefix}.0.0", inner, 1), f"{prefix}.0.1"))
                step = 1
            x = book.conv(x, f"{prefix}.{step}.0", inner, 3, stride, groups=inner)
            x = F.relu6(book.norm(x, f"{prefix}.{step}.1"))
            x = book.norm(book.conv(x, f"{prefix}.{step + 1}", channels, 1), f"{prefix}.{step + 2}")
            if stride == 1 and channels == entry.shape[1]:
                x = x + entry
    x = F.relu6(book.norm(book.conv(x, "features.18.0", 1280, 1), "features.18.1"))
    return book.dense(x.mean((2, 3)), "classifier.1", classes)


def mobilenet_v3_small(book: Book, x: Tensor, classes: int) -> Tensor:
    """The paper's table 2: kernel, inner channels, channels, squeezed channels (0: none), hard swish, stride."""
    rows = [(3, 16, 16, 8, 0, 2), (3, 72, 24, 0, 0, 2), (3, 88, 24, 0, 0, 1), (5, 96, 40, 24, 1, 2)]
    rows += [(5, 240, 40, 64, 1, 1), (5, 240, 40, 64, 1, 1), (5, 120, 48, 32, 1, 1), (5, 144, 48, 40, 1, 1)]
    rows += [(5, 288, 96, 72, 1, 2), (5, 576, 96, 144, 1, 1), (5, 576, 96, 144, 1, 1)]
    x = F.hardswish(book.norm(book.conv(x, "features.0.0", 16, 3, 2), "features.0.1"))
    for number, (kernel, inner, channels, squeezed, hard, stride) in enumerate(rows, 1):
        prefix, step, entry = f"features.{number}.block", 0, x
        act = F.hardswish if hard else F.relu
        if inner != x.shape[1]:
            x = act(book.norm(book.conv(x, f"{prefix}.0.0", inner, 1), f"{prefix}.0.1"))
            step = 1
        x = book.conv(x, f"{prefix}.{step}.0", inner, kernel, stride, groups=inner)
        x = act(book.norm(x, f"{prefix}.{step}.1"))
        if squeezed:
            step += 1
            s = F.relu(book.conv(x.mean((2, 3), keepdim=True), f"{prefix}.{step}.fc1", squeezed, 1, bias=True))
            x = x * F.hardsigmoid(book.conv(s, f"{prefix}.{step}.fc2", inner, 1, bias=True))
        x = book.norm(book.conv(x, f"{prefix}.{step + 1}.0", channels, 1), f"{prefix}.{step + 1}.1")
        if stride == 1 and channels == entry.shape[1]:
            x = x + entry
    x = F.hardswish(book.norm(book.conv(x, "features.12.0", 576, 1), "features.12.1"))
    x = F.hardswish(book.dense(x.mean((2, 3)), "classifier.0", 1024))
    return book.dense(x, "classifier.3", classes)
