"""Names, numbers and guesses before any file is read."""

from pathlib import Path

import pytest
from tests.data.small import make_cifar10, make_mnist

from conveyor.data import catalogue
from conveyor.data.catalogue import DatasetInfo
from conveyor.errors import UserError
from conveyor.options.data import DataOptions


def test_known_sets_need_no_files() -> None:
    assert {name: (i.train_images, i.validation_images, i.num_classes) for name, i in catalogue.known().items()} == {
        "digits": (1437, 360, 10),
        "mnist": (60_000, 10_000, 10),
        "fashion-mnist": (60_000, 10_000, 10),
        "cifar10": (50_000, 10_000, 10),
        "cifar100": (50_000, 10_000, 100),
        "imagenet": (1_281_167, 50_000, 1000),
    }


def test_importing_the_catalogue_does_not_import_torch(python) -> None:
    done = python("import sys, conveyor.data.catalogue as c; c.info(c.DataOptions()); print('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/data/ImageNet-data", "imagenet"),
        ("/data/cifar-100-binary", "cifar100"),
        ("/data/cifar-10-batches-bin", "cifar10"),
        ("/data/Fashion-MNIST", "fashion-mnist"),
        ("/data/MNIST/raw", "mnist"),
    ],
)
def test_the_name_is_guessed_from_the_folder(folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert catalogue.name_of(DataOptions(data_dir=folder)) == name
    monkeypatch.setenv("DATA_DIR", folder)
    assert catalogue.name_of(DataOptions()) == name


def test_photographs_are_photographs_whatever_word_is_in_the_path(tmp_path: Path) -> None:
    photos = tmp_path / "mnist-work" / "photos"
    for name in ("cat", "dog"):
        (photos / name).mkdir(parents=True)
        (photos / name / "1.JPG").touch()
    assert catalogue.name_of(DataOptions(data_dir=str(photos))) == "folder"
    make_mnist(photos / "mnist", train=9, test=4)
    assert catalogue.name_of(DataOptions(data_dir=str(photos))) == "mnist"
    (tmp_path / "cifar" / "downloads").mkdir(parents=True)
    assert catalogue.name_of(DataOptions(data_dir=str(tmp_path / "cifar"))) == "cifar10"


def test_class_folders_below_a_folder_called_imagenet_are_not_imagenet(tmp_path: Path) -> None:
    """All of its validation images may lie in class folders alone; photographs of another kind would have none to train on."""
    photos, validation = tmp_path / "imagenet-work" / "pets", tmp_path / "imagenet" / "val"
    for folder in (photos / "cat", photos / "dog", validation / "n01440764", validation / "n01443537"):
        folder.mkdir(parents=True)
        for number in range(4):
            (folder / f"{number}.jpg").touch()
    options = DataOptions(data_dir=str(photos), hold_out=0.25)
    assert (catalogue.name_of(options), catalogue.info(options).train_images) == ("folder", 6)
    assert catalogue.name_of(DataOptions(data_dir=str(validation))) == "imagenet"


def test_without_anything_the_digits_are_taken() -> None:
    assert catalogue.info(DataOptions()).name == "digits"


def test_unknown_names_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        catalogue.info(DataOptions(data="cifar11"))
    with pytest.raises(UserError, match="--data"):
        catalogue.info(DataOptions(data_dir=str(tmp_path)))
    with pytest.raises(UserError, match="needs --data-dir"):
        catalogue.info(DataOptions(data="folder"))


def test_spellings() -> None:
    assert catalogue.canonical_name("CIFAR-10") == "cifar10"
    assert catalogue.canonical_name("Fashion_MNIST") == "fashion-mnist"


def test_limits() -> None:
    info = catalogue.info(DataOptions(data="cifar10", data_percentage=10, max_validation_images=77))
    assert (info.train_images, info.validation_images) == (5000, 77)
    assert catalogue.info(DataOptions(data="cifar10", data_percentage=10, max_train_images=64)).train_images == 64
    assert catalogue.info(DataOptions(data="digits", data_percentage=0.0001)).train_images == 1


def test_a_shortened_copy_counts_as_what_it_is(tmp_path: Path) -> None:
    make_cifar10(tmp_path / "cifar", per_file=6)
    info = catalogue.info(DataOptions(data_dir=str(tmp_path / "cifar")))
    assert (info.name, info.train_images, info.validation_images) == ("cifar10", 30, 6)
    make_mnist(tmp_path / "mnist", train=9, test=4, zipped=True)
    info = catalogue.info(DataOptions(data="mnist", data_dir=str(tmp_path / "mnist")))
    assert (info.train_images, info.validation_images) == (9, 4)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    info = catalogue.info(DataOptions(data="mnist", data_dir=str(tmp_path / "mnist")))
    assert info.train_images == 60_000, "a damaged file is named when it is read"


def test_folders_are_counted(tmp_path: Path) -> None:
    for split, counts in (("train", (3, 2)), ("val", (1, 0))):
        for name, count in zip(("cat", "dog"), counts, strict=True):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                (tmp_path / split / name / f"{i}.JPEG").write_bytes(b"")
            (tmp_path / split / name / "notes.txt").write_text("")
    info = catalogue.info(DataOptions(data_dir=str(tmp_path)))
    assert (info.name, info.kind, info.train_images, info.validation_images) == ("folder", "files", 5, 1)
    assert info.class_names == ("cat", "dog")
    (tmp_path / "train" / "dog" / "new.png").write_bytes(b"")
    assert catalogue.info(DataOptions(data_dir=str(tmp_path))).train_images == 6
    (tmp_path / "val" / "horse").mkdir()
    with pytest.raises(UserError, match="'horse'"):
        catalogue.info(DataOptions(data_dir=str(tmp_path)))


def test_a_registered_set_has_a_name() -> None:
    info = DatasetInfo(name="squares", train_images=8, validation_images=2, num_classes=2, image_size=4, channels=1)
    catalogue.register(info)
    assert catalogue.info(DataOptions(data="squares")) == info


def test_generated_images_take_any_seed() -> None:
    from conveyor.data.formats.memory import GeneratedDataset

    made = GeneratedDataset(catalogue.info(DataOptions()), 4, 8, 1, seed=-5)
    assert made.read([0, 3], 0).images.shape == (2, 8, 8, 1)
