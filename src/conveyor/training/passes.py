"""Which slots go through the network together.

Every pass reads the weights twice and writes their gradient once, whatever the size of its batch: with a micro-batch of
8 small pictures that costs more than the arithmetic. A lane that has several slots to run therefore joins some of them
in one pass. Samples do not know of each other but in batch norms, and those take each slot's statistics by themselves.
"""

from collections.abc import Sequence

from torch import nn

from conveyor.models.norms import BatchNorm

MAX_PIXELS = 2**17
"""Pixels of a joint pass: 2 pictures of 224 x 224, 32 of 64 x 64. More gains nothing and would take memory."""
MAX_IMAGES = 64


def spans_per_pass(model: nn.Module, images: int, image_size: int) -> int:
    """How many batch-norm spans of `images` images each one pass takes: a power of two, so that lanes cut few of them."""
    fitting = min(MAX_IMAGES // images, MAX_PIXELS // (images * image_size * image_size))
    if fitting < 2 or not _samples_are_independent(model):
        return 1
    return 1 << (fitting.bit_length() - 1)


def slots_of_passes(slots: Sequence[int], span: int, spans: int = 1) -> list[tuple[int, ...]]:
    """The slots of each pass: those here of `spans` neighbouring batch-norm spans of `span` slots.

    The passes begin at multiples of their length whatever slots are here, so that they are mostly the same in every
    layout. The rest of a span that is cut lies in other lanes; the norms' `span_group` joins them.

    >>> slots_of_passes(range(4), 2)
    [(0, 1), (2, 3)]
    >>> slots_of_passes(range(2, 8), 1, 4)
    [(2, 3), (4, 5, 6, 7)]
    """
    groups: dict[int, list[int]] = {}
    for slot in slots:
        groups.setdefault(slot // (span * spans), []).append(slot)
    return [tuple(group) for group in groups.values()]


def _samples_are_independent(model: nn.Module) -> bool:
    """Whether only our own batch norms mix the samples of a batch: known of our layers and torch's, of no others."""
    return all(
        isinstance(module, BatchNorm)
        or (
            type(module).__module__.startswith(("torch.nn.", "conveyor.models."))
            and not isinstance(module, nn.modules.batchnorm._BatchNorm)
        )
        for module in model.modules()
    )
