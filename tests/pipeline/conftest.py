"""One pool of worker processes for all tests of this folder."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def _load_pool() -> Any:
    path = Path(__file__).with_name("pool.py")
    spec = importlib.util.spec_from_file_location("conveyor_test_pool", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["conveyor_test_pool"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def pool() -> Iterator[Any]:
    workers = _load_pool().Pool()
    yield workers
    workers.close()
