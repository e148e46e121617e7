"""The small public data sets: which files they consist of, where they come from, how they are checked. No torch."""

import dataclasses

_LECUN = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_ZALANDO = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_TORONTO = ("https://www.cs.toronto.edu/~kriz/",)


@dataclasses.dataclass(frozen=True, slots=True)
class Download:
    """A file to fetch; `size` in bytes and `md5` say whether it arrived whole."""

    name: str
    size: int
    md5: str


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A data set of a few files.

    `folder` is the name it has when unpacked, `files` are the files that a complete copy has, with the MD5 of their
    (unzipped) content, or an empty text where the publisher gives none; `python_files` are those of the layout that
    torchvision downloads.
    """

    name: str
    mirrors: tuple[str, ...]
    downloads: tuple[Download, ...]
    folder: str
    files: dict[str, str]
    python_folder: str = ""
    python_files: dict[str, str] = dataclasses.field(default_factory=dict)
    other_folders: tuple[str, ...] = ()
    """Where other programs keep the same files, below their own data folder; `*` matches any name."""

    @property
    def download_bytes(self) -> int:
        return sum(download.size for download in self.downloads)


_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx(md5s: tuple[str, str, str, str]) -> dict[str, str]:
    return dict(zip(_IDX_FILES, md5s, strict=True))


def _zipped(sizes_and_md5s: tuple[tuple[int, str], ...]) -> tuple[Download, ...]:
    return tuple(Download(f"{name}.gz", *rest) for name, rest in zip(_IDX_FILES, sizes_and_md5s, strict=True))


SOURCES = {
    source.name: source
    for source in (
        Source(
            name="mnist",
            mirrors=_LECUN,
            downloads=_zipped(
                (
                    (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                    (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
                    (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
                    (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
                )
            ),
            folder="mnist",
            files=_idx(
                (
                    "6bbc9ace898e44ae57da46a324031adb",
                    "a25bea736e30d166cdddb491f175f624",
                    "2646ac647ad5339dbf082846283269ea",
                    "27ae3e4e09519cfbb04c329615203637",
                )
            ),
            other_folders=("MNIST/raw", "MNIST"),
        ),
        Source(
            name="fashion-mnist",
            mirrors=_ZALANDO,
            downloads=_zipped(
                (
                    (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                    (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
                    (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
                    (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
                )
            ),
            folder="fashion-mnist",
            files=_idx(
                (
                    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                    "9018921c3c673c538a1fc5bad174d6f9",
                    "8181f5470baa50b63fa0f6fddb340f0a",
                    "15d484375f8d13e6eb1aabb0c3f46965",
                )
            ),
            other_folders=("FashionMNIST/raw", "FashionMNIST", "fashion_mnist"),
        ),
        Source(
            name="cifar10",
            mirrors=_TORONTO,
            downloads=(Download("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),),
            folder="cifar-10-batches-bin",
            files={
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
            python_folder="cifar-10-batches-py",
            python_files={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
            other_folders=("cifar10", "downloads/extracted/*/cifar-10-batches-bin"),
        ),
        Source(
            name="cifar100",
            mirrors=_TORONTO,
            downloads=(Download("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),),
            folder="cifar-100-binary",
            files={"train.bin": "", "test.bin": ""},
            python_folder="cifar-100-python",
            python_files={
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            },
            other_folders=("cifar100", "downloads/extracted/*/cifar-100-binary"),
        ),
    )
}
"""The sets that `conveyor data get` knows, by name."""
