"""Words for numbers."""

import pytest

from conveyor.options.units import many


@pytest.mark.parametrize(
    ("count", "what", "form", "text"),
    [
        (1, "epoch", "", "1 epoch"),
        (0, "image", "", "0 images"),
        (1320, "update", "", "1320 updates"),
        (1281167, "image", ",", "1,281,167 images"),
        (1, "class", "", "1 class"),
        (10, "class", "", "10 classes"),
        (2.5, "epoch", "", "2.5 epochs"),
        (1.0, "epoch", "", "1 epoch"),
        (3, "batch", "", "3 batches"),
    ],
)
def test_one_and_many(count: float, what: str, form: str, text: str) -> None:
    assert many(count, what, form) == text
