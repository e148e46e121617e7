"""Data tests look at no folder of the machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No data folder of the machine is looked at, and torch keeps to one thread."""
    for variable in ("DATA_DIR", "DATASETS_DIR", "TFDS_DATA_DIR", "TORCH_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("conveyor.data.formats.locate.SYSTEM_FOLDERS", ())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
