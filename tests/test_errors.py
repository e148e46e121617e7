from pathlib import Path

import pytest
import torch

from conveyor.errors import UserError, explained_memory, needed, nothing_at


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


def test_what_is_not_there_is_told_with_what_may_be_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first").mkdir()
    assert f"(did you mean {tmp_path / 'first'}?): give a run" in str(nothing_at(tmp_path / "frist", "a run"))
    assert str(nothing_at(tmp_path / "no" / "frist", "a run")) == f"there is nothing at {tmp_path}/no/frist: give a run"
    assert "mean" not in str(nothing_at("http://host:1", "a run"))
    (tmp_path / "runs" / "second").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert str(nothing_at("second", "a run")) == "there is nothing at second (did you mean runs/second?): give a run"


def test_a_library_that_is_not_there_is_named_with_what_installs_it() -> None:
    with pytest.raises(UserError, match=r"^--plot needs absent_library: pip install 'conveyor\[plot\]'$"):
        needed("absent_library.part", "--plot", "plot")
    assert needed("os.path", "", "").sep == "/"
