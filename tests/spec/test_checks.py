"""What a run says about itself before it begins."""

import pytest

from conveyor.layout import Machine
from conveyor.spec.checks import exactness


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "bit-identical to any other layout"),
        ({"model": "resnet50"}, "bit-identical to any other layout"),
        ({"model": "timm/convnext_atto"}, "bit-identical to any other layout of depth 1"),
        ({"usual": 2}, "bit-identical to any other layout with --threads 1"),
        ({"model": "nets.py:tiny"}, "bit-identical to other layouts if your module's layers are"),
        ({"own": True}, "bit-identical to other layouts if your module's layers are"),
    ],
)
def test_which_layouts_compute_the_same_bits(more: dict[str, object], expected: str) -> None:
    asked: dict[str, object] = {"machine": Machine(2), "own": False, "threads": 1, "usual": 1, **more}
    assert exactness(**asked) == expected  # type: ignore[arg-type]
