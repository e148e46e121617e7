"""Operations of RandAugment, TrivialAugment and colour jitter on 8-bit images, by PyTorch on any device or by a C function.

Each is Pillow's, to the bit: values are cut to whole numbers, moved images are sampled at positions of 16 fractional bits.
What is to be done is a plan, float64 [B, steps, 8]: for each image and step a number of `CODES` and its values. A plan
holds everything that is rounded or drawn, and its values stand on the host; the rest is whole numbers and single float32
operations, so both ways, and every layout, give the same bits.
"""

import torch
from torch import Tensor

from conveyor.data.transform import augment
from conveyor.data.transform.normalize import LUMA
from conveyor.numerics.copy_stream import sent

CODES = (
    "identity", "autocontrast", "equalize", "solarize", "posterize", "color", "contrast", "brightness", "sharpness",
    "nearest", "bilinear", "hue",
)  # fmt: skip
"""Values: solarize the threshold; posterize the number of bits that go; color, contrast, brightness, sharpness a factor; hue a
share of the circle; nearest and bilinear the six numbers of `source` and the level outside the image."""
WIDTH = 8
"""Of a step in the plan: its code and seven values."""
ONE = 1 << 16
LUMA_SHARES = (19595, 38470, 7471)
"""`LUMA` in units of 1 / 65536."""
IN_CACHE = 1 << 20
"""Values that go through an operation together: what it makes on the way then stays near the processor."""


def change(images: Tensor, plan: Tensor) -> Tensor:
    """uint8 [B, H, W, C] from uint8 [B, H, W, C], or from float32 in 0..255, which is rounded first."""
    if images.is_floating_point():
        images = images.round().clamp_(0, 255).to(torch.uint8)
    images = images.contiguous()
    if not augment.applies(images, None, planned=True):
        return by_torch(images, plan)
    return augment.augment(images, None, plan=plan)


def by_torch(images: Tensor, plan: Tensor) -> Tensor:
    """`change` by PyTorch: images with the same code go through it together, in pieces that stay in the cache."""
    for step in plan.unbind(1):
        codes, order = step[:, 0].to(torch.int64).sort(stable=True)
        numbers, counts = codes.unique_consecutive(return_counts=True)
        parts = []
        for number, same in zip(numbers.tolist(), order.split(counts.tolist()), strict=True):
            for where in same.split(max(1, IN_CACHE // max(1, images[0].numel()))):
                taken = images.index_select(0, sent(where, images.device))
                values = sent(step[where, 1:], images.device)
                parts.append(_one(CODES[number], taken, values))
        images = torch.cat(parts).index_select(0, sent(order.argsort(), images.device))
    return images


def _one(name: str, images: Tensor, values: Tensor) -> Tensor:
    """One operation on uint8 [b, H, W, C], `values` float64 [b, 7]."""
    if name in ("nearest", "bilinear"):
        return moved(images, values.to(torch.int64), smoothly=name == "bilinear")
    if name == "hue":
        return turned(images, values[:, 0].float()) if images.shape[3] == 3 else images
    if name in ("color", "sharpness"):
        plain = grey(images)[..., None] if name == "color" else smooth(images)
        return blend(plain, images, values[:, :1, None, None].float())
    if name == "identity":
        return images
    levels = images.permute(0, 3, 1, 2).flatten(2).to(torch.int64)
    found = tables(name, images, levels, values).expand(*levels.shape[:2], 256)
    return found.gather(2, levels).view(images.permute(0, 3, 1, 2).shape).permute(0, 2, 3, 1)


def tables(name: str, images: Tensor, levels: Tensor, values: Tensor) -> Tensor:
    """What each of 256 levels becomes, uint8 [b, C or 1, 256], where an operation looks at each level by itself."""
    every = torch.arange(256, device=images.device).view(1, 1, 256)
    value = values[:, :1, None]
    if name == "solarize":
        return torch.where(every >= value, 255 - every, every).to(torch.uint8)
    if name == "posterize":
        return (every >> value.to(torch.int64) << value.to(torch.int64)).to(torch.uint8)
    if name in ("brightness", "contrast"):
        plain = torch.zeros_like(value)
        if name == "contrast":
            plain = (
                grey(images).flatten(1).sum(1, dtype=torch.int64).double() / images[0, ..., 0].numel() + 0.5
            ).floor()
        return blend(plain.view(-1, 1, 1), every, value.float())
    if name == "autocontrast":
        low, high = (one[..., None].double() for one in torch.aminmax(levels, dim=2))
        scale = torch.full_like(low, 255) / (high - low).clamp_min(1)  # 255 / x would be 255 times 1 / x, rounded twice
        found = (every * scale + -low * scale).clamp(0, 255).to(torch.uint8)
        return torch.where(high > low, found, every.to(torch.uint8))
    counts = torch.zeros(*levels.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    step = (levels.shape[2] - counts.gather(2, levels.amax(2, keepdim=True))) // 255
    darker = counts.cumsum(2) - counts
    found = ((darker + step // 2) // step.clamp_min(1)).clamp(0, 255)
    return torch.where(step > 0, found, every).to(torch.uint8)


def blend(plain: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """plain + factor (images - plain) in float32, cut to whole numbers in 0..255."""
    return ((images.float() - plain.float()) * factor + plain.float()).clamp_(0, 255).to(torch.uint8)


def grey(images: Tensor) -> Tensor:
    """int32 [B, H, W] of 0..255: the colours by `LUMA`, rounded; of other images the channels' mean, rounded."""
    channels = images.shape[3]
    if channels != len(LUMA):
        return (2 * images.sum(3, dtype=torch.int32) + channels) // (2 * channels)
    red, green, blue = (one.to(torch.int32) * share for one, share in zip(images.unbind(3), LUMA_SHARES, strict=True))
    return (red + green + blue + ONE // 2) >> 16


def smooth(images: Tensor) -> Tensor:
    """int32: the mean of 3 x 3 pixels, the middle one five times of 13, rounded; the border stays."""
    found = images.to(torch.int32)
    if min(images.shape[1:3]) > 2:
        rows = found[:, :-2] + found[:, 1:-1] + found[:, 2:]
        sums = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:] + 4 * found[:, 1:-1, 1:-1]
        found = found.clone()
        found[:, 1:-1, 1:-1] = (2 * sums + 13) // 26
    return found


def turned(images: Tensor, share: Tensor) -> Tensor:
    """Hues turned by `share` [B] of the circle, float32, rounded to whole numbers; saturation and value stay.

    With V the largest and C the largest minus the smallest channel, channel n of a colour of hue h (in sixths of the
    circle) is V - C clamp(min(k, 4 - k), 0, 1), k = (n + h) mod 6, n = 5, 3, 1 for red, green, blue.
    """
    red, green, blue = images.permute(3, 0, 1, 2).float()
    value = torch.maximum(torch.maximum(red, green), blue)
    spread = value - torch.minimum(torch.minimum(red, green), blue)
    top = torch.where(value == red, green - blue, torch.where(value == green, blue - red, red - green))
    sector = torch.where(value == red, 0.0, torch.where(value == green, 2.0, 4.0))
    hue = sector + top / spread.clamp_min(1) + 6 * share.view(-1, 1, 1)
    found = []
    for n in (5, 3, 1):
        k = hue + n
        k = k - 6 * (k * (1 / 6)).floor()
        found.append((value - torch.minimum(k, 4 - k).clamp_(0, 1) * spread + 0.5).to(torch.uint8))
    return torch.stack(found, 3)


def source(matrix: Tensor, height: int, width: int, *, centred: Tensor) -> Tensor:
    """Plan values of a move, float64 [B, 6] of whole numbers, from the map (x, y) -> (a x + b y + c, d x + e y + f) in pixels.

    `matrix` [B, 6] is float64; where `centred` [B], the map is about the middle of the image and not about its corner. The
    source of pixel (x, y) is (v0 x + v1 y + v2, v3 x + v4 y + v5) / 65536, that of its middle.
    """
    a, b, c, d, e, f = matrix.unbind(1)
    middle, down = centred * (width / 2), centred * (height / 2)
    c, f = c + (a * -middle + b * -down) + middle, f + (d * -middle + e * -down) + down
    return torch.stack([a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5], 1).mul(ONE).add_(0.5).floor_()


def moved(images: Tensor, values: Tensor, *, smoothly: bool) -> Tensor:
    """The nearest pixel, or a bilinear mean in steps of 1/256, at the source of each; outside there is level `values[6]`."""
    batch, height, width, channels = images.shape
    down, across = (torch.arange(size, device=images.device) for size in (height, width))
    xs, ys = (
        values[:, first, None, None] * across + values[:, first + 1, None, None] * down[:, None]
        + values[:, first + 2, None, None] for first in (0, 3)
    )  # fmt: skip
    flat, fill = images.reshape(batch, -1, channels), values[:, 6].view(-1, 1, 1, 1).to(torch.int32)

    def at(columns: Tensor, rows: Tensor) -> Tensor:
        inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        where = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).view(batch, -1, 1)
        found = flat.gather(1, where.expand(-1, -1, channels)).view(images.shape)
        return torch.where(inside[..., None], found.to(torch.int32), fill)

    if not smoothly:
        return at(xs >> 16, ys >> 16).to(torch.uint8)
    xs, ys = xs - ONE // 2, ys - ONE // 2
    left, top = xs >> 16, ys >> 16
    right, below = ((one >> 8 & 255).to(torch.int32)[..., None] for one in (xs, ys))
    upper, lower = (
        (at(left, row) * (256 - right) + at(left + 1, row) * right + 128) >> 8 for row in (top, top + 1)
    )  # fmt: skip
    return ((upper * (256 - below) + lower * below + 128) >> 8).to(torch.uint8)
