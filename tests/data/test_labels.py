"""Class weights: scikit-learn's, those of a file, and the labels they come from; copies of a sample in an epoch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.photos import make_folder

from conveyor.data import open_dataset
from conveyor.data.feed import TrainingFeed
from conveyor.data.formats.memory import MemoryDataset
from conveyor.data.labels import class_weights, labels_of, read_weights
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.topology import Topology

LABELS = np.array([0] * 12 + [1] * 3 + [3] * 5)


def small_set() -> MemoryDataset:
    images = np.random.default_rng(0).integers(0, 256, (len(LABELS), 4, 4, 1), dtype=np.uint8)
    return MemoryDataset(images, LABELS, 4)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    utils = pytest.importorskip("sklearn.utils", reason="scikit-learn is the other implementation")
    found = class_weights("balanced", small_set(), (), 4)
    expected = utils.compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=LABELS)
    assert [found[0], found[1], found[3]] == pytest.approx(expected.tolist())
    assert np.mean([found[label] for label in LABELS]) == pytest.approx(1)


def test_a_file_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "weights.csv"
    path.write_text("class,weight\nbee,2.5\nape,1\n")
    assert read_weights(path, ("ape", "bee"), 2) == [1, 2.5]
    path.write_text("0,1\n1,3\n")
    assert read_weights(path, (), 2) == [1, 3]
    for text, part in (
        ("ape,1\n", "no weight for 'bee'"),
        ("ape,1\nbear,2\n", "did you mean 'bee'"),
        ("x\n", "lines CLASS"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=part):
            read_weights(path, ("ape", "bee"), 2)
    with pytest.raises(UserError, match="cannot read"):
        read_weights(tmp_path / "none.csv", ("ape",), 1)


def test_folders_know_their_labels_and_a_set_that_does_not_is_read(tmp_path: Path) -> None:
    make_folder(tmp_path, train=5)
    options = Options.from_mapping({"data": "folder", "data_dir": str(tmp_path), "image_size": 16})
    folder = open_dataset(options, "train")
    assert labels_of(folder).tolist() == folder.read(np.arange(len(folder)), 0).labels.tolist()

    class Plain:
        chunk = 8
        num_classes = 4

        def __len__(self) -> int:
            return len(LABELS)

        def read(self, indices: np.ndarray, epoch: int) -> object:
            return small_set().read(indices, epoch)

    assert labels_of(Plain()).tolist() == LABELS.tolist()


@pytest.mark.parametrize("kind", ["photographs", "memory"])
def test_copies_of_a_sample_are_augmented_differently(kind: str, tmp_path: Path) -> None:
    from conveyor.data.transform.prepare import Prepare
    from conveyor.spec import resolve

    if kind == "photographs":
        make_folder(tmp_path, train=6)
        chosen = {"data": "folder", "data_dir": str(tmp_path), "image_size": 24, "flip": "none", "micro_batch_size": 4}
    else:
        chosen = {"data": "digits", "max_train_images": 12, "train_crop": "pad", "flip": "none", "micro_batch_size": 4}
    spec = resolve(Options.from_mapping({**chosen, "layout": "1x1"}))
    dataset = open_dataset(spec.options, "train", spec.subject.image_size, spec.subject.in_channels)
    prepare = Prepare(spec.options, spec.data, about=spec.subject)
    feed = TrainingFeed(dataset, Topology(micro_batch=12), updates_per_epoch=1, stop_update=1, repeats=3)
    with feed:
        batch = next(feed)
    count = len(dataset)
    assert sorted(np.bincount(batch.samples % count, minlength=count).tolist())[-4:] == [3] * 4
    images, target = prepare(batch, True)
    for sample in (batch.samples % count).unique():
        own = (batch.samples % count == sample).nonzero()[:, 0].tolist()
        assert target.labels[own].unique().numel() == 1
        assert not torch.equal(images[own[0]], images[own[1]])
