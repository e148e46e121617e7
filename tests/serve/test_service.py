import asyncio
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conveyor.serve import images
from conveyor.serve.refused import Late
from conveyor.serve.service import Service
from conveyor.serve.settings import ServeSettings


def test_decoding_ends_with_the_time_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(*_: object) -> np.ndarray:
        time.sleep(0.05)
        return np.zeros((8, 8, 1), np.uint8)

    monkeypatch.setattr(images, "decode", slowly)
    service, model = Service(ServeSettings(path="x", timeout=0.2)), SimpleNamespace(preprocessing=None)
    start = time.monotonic()

    async def decode(count: int) -> Any:
        return await service.decode(model, [b"photograph"] * count)  # type: ignore[arg-type]

    assert len(asyncio.run(decode(2))) == 2
    with pytest.raises(Late, match=r"within 0\.2 seconds"):
        asyncio.run(decode(100))
    assert time.monotonic() - start < 4, "all hundred would take five seconds"
