import math

import pytest

from conveyor.errors import UserError
from conveyor.serve.settings import ServeSettings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": "onnxruntim"}, "no engine 'onnxruntim' .did you mean 'onnxruntime'"),
        ({"threads": 0}, "--threads 0"),
        ({"threads": -1}, "--threads -1"),
        ({"delay_us": -1}, "--delay-us -1"),
        ({"max_body": 0}, "--max-body 0"),
        ({"max_pixels": 0}, "--max-pixels 0"),
        ({"timeout": 0.0}, "--timeout 0"),
        ({"timeout": -1.0}, "--timeout -1"),
        ({"timeout": math.nan}, "--timeout nan"),
        ({"poll": -1.0}, "--poll -1"),
        ({"drain": math.inf}, "--drain inf"),
        ({"drain_delay": -0.5}, "--drain-delay -0.5"),
        ({"max_inflight": 1000}, "no room for one request of --max-body"),
    ],
)
def test_values_that_cannot_work_are_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ServeSettings(path="x", **changes).check()  # type: ignore[arg-type]


def test_values_that_switch_something_off() -> None:
    ServeSettings(path="x", poll=0.0, drain=0.0, drain_delay=0.0, delay_us=0).check()
