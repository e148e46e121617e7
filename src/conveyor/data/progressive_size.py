"""Image size by epoch, from pairs such as `0:96 10:128`. No torch."""

from collections.abc import Sequence

from conveyor.options.units import size_from_epoch


def parse_progressive(pairs: Sequence[str]) -> list[tuple[int, int]]:
    """`["0:96", "10:128"]` -> [(0, 96), (10, 128)], sorted by epoch."""
    return sorted(size_from_epoch(pair) for pair in pairs)


def image_size_at(pairs: Sequence[str], epoch: int, image_size: int) -> int:
    """The size of training images in `epoch`: that of the last pair whose epoch has begun, else `image_size`."""
    begun = [size for first, size in parse_progressive(pairs) if first <= epoch]
    return begun[-1] if begun else image_size
