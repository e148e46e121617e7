"""PyTorch's --use-bbox-info: with boxes it steers crops, without them it is a note."""

import pytest
from tests.data.photos import make_folder

from conveyor.dialects.scripts import translate


def test_bounding_boxes_of_pytorch_steer_crops_where_there_are_some(tmp_path):
    make_folder(tmp_path)
    words = ["--data", "imagenet", "--use-bbox-info", "--imagenet-data-path", str(tmp_path)]
    without = translate("pytorch", "train", words, environment={})
    assert without.options.data.crop_overlap == 0
    missing = [note for note in without.notes if f"{tmp_path} has no imagenet_2012_bounding_boxes.csv" in note]
    assert len(missing) == 1
    others = tuple(note for note in without.notes if note not in missing)
    (tmp_path / "imagenet_2012_bounding_boxes.csv").write_text("0.JPEG,0,0,0.5,0.5\n")
    for given in (words, [*words[:-2], "--data-dir", str(tmp_path)], [*words[:-1], "not-there-yet"]):
        found = translate("pytorch", "train", given, environment={})
        assert (found.options.data.crop_overlap, found.notes) == (0.1, others)
        assert "--crop-overlap 0.1" in found.text()
    plain = translate("pytorch", "train", ["--data", "imagenet"], environment={})
    assert plain.options.data.crop_overlap == 0


@pytest.mark.parametrize(
    "words", ["--data generated", "--data synthetic", "--data cifar10", "--data imagenet --generated-data"]
)
def test_images_without_bounding_boxes_are_cropped_as_usual(words):
    found = translate("pytorch", "train", [*words.split(), "--use-bbox-info"], environment={})
    assert found.options.data.crop_overlap == 0
    assert sum("--use-bbox-info has no effect here" in note for note in found.notes) == 1
    shipped = translate("pytorch", "train", ["--config", "resnet50", *words.split()], environment={})
    assert "--crop-overlap 0.0" in shipped.text()
