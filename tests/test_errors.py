import pytest
import torch

from conveyor.errors import UserError, explained_memory, needed


def test_memory_that_torch_cannot_get_is_one_sentence_with_a_cure() -> None:
    with (
        pytest.raises(UserError, match=r"\(tried to allocate \d+ bytes\): choose a smaller --micro-batch-size"),
        explained_memory(),
    ):
        torch.empty(2**60, dtype=torch.uint8)
    with pytest.raises(UserError, match="not enough memory"), explained_memory():
        raise MemoryError("not enough memory for the tiles of a convolution")
    with pytest.raises(RuntimeError, match="another"), explained_memory():
        raise RuntimeError("another error")


def test_a_library_that_is_not_there_is_named_with_what_installs_it() -> None:
    with pytest.raises(UserError, match=r"^--plot needs absent_library: pip install 'conveyor\[plot\]'$"):
        needed("absent_library.part", "--plot", "plot")
    assert needed("os.path", "", "").sep == "/"
