"""One pool of worker processes for all tests of this folder."""

from collections.abc import Iterator

import pytest
from tests.pipeline.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    workers = Pool()
    yield workers
    workers.close()
