"""Run folders for the report's tests."""

from pathlib import Path

import pytest
from tests.report.make_run import make_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "resnet20-cifar10")
