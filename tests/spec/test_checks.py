"""What a run says about itself before it begins."""

from pathlib import Path

import pytest

from conveyor.layout import Machine
from conveyor.options import Options
from conveyor.spec import resolve
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


def test_a_class_that_the_first_images_leave_out_is_named(tmp_path: Path) -> None:
    """Class folders are read one after the other: half of the images may be half of the classes."""
    for name in ("ape", "bee", "cat"):
        for number in range(10):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{number}.jpg").touch()
    options = Options().replace(data_dir=str(tmp_path), micro_batch_size=4, image_size=32, model="resnet8")
    said = resolve(options.replace(data_percentage=50, max_validation_images=1)).notes
    assert any("the first 13 of 27 images for train have none of cat" in note for note in said), said
    assert any("the first 1 of 3 images for validation have none of bee, cat" in note for note in said), said
    assert not any("have none of" in note for note in resolve(options).notes)
    assert any("--shuffle shards has no effect" in note for note in resolve(options.replace(shuffle="shards")).notes)
