"""The number of threads that torch computes with."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """`count` threads during the block; a caller from Python gets its own number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
