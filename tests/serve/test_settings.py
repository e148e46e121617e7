import math

import pytest

from conveyor.errors import UserError
from conveyor.serve.settings import ServeSettings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": "onnxruntim"}, "--engine cannot be 'onnxruntim' .did you mean 'onnxruntime'"),
        ({"threads": 0}, "--threads is 0; the smallest value is 1"),
        ({"threads": -1}, "--threads is -1; the smallest value is 1"),
        ({"delay_us": -1}, "--delay-us is -1; the smallest value is 0"),
        ({"max_body": 0}, "--max-body is 0; the smallest value is 1"),
        ({"max_pixels": 0}, "--max-pixels is 0; the smallest value is 1"),
        ({"timeout": 0.0}, "--timeout is 0; give a number above 0"),
        ({"timeout": -1.0}, "--timeout is -1; give a number above 0"),
        ({"timeout": math.nan}, "--timeout is not a number"),
        ({"poll": -1.0}, "--poll is -1; the smallest value is 0"),
        ({"drain": math.inf}, "--drain is infinite"),
        ({"drain_delay": -0.5}, "--drain-delay is -0.5; the smallest value is 0"),
        ({"swap_agreement": 2.0}, "--swap-agreement is 2; the largest value is 1"),
        ({"name": "a/b"}, "--name 'a/b' cannot be a part of an address"),
        ({"max_inflight": 1000}, "no room for one request of --max-body"),
    ],
)
def test_values_that_cannot_work_are_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ServeSettings(path="x", **changes).check()  # type: ignore[arg-type]


def test_values_that_switch_something_off() -> None:
    ServeSettings(path="x", poll=0.0, drain=0.0, drain_delay=0.0, delay_us=0).check()
