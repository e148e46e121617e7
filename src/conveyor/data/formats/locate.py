"""Finding a copy of a small data set that is already on the machine. No torch."""

import dataclasses
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from conveyor.data.formats import tfds
from conveyor.data.formats.idx import is_zipped
from conveyor.data.formats.sources import SOURCES, Source
from conveyor.errors import UserError
from conveyor.files import cache_folder, user_path

SYSTEM_FOLDERS = (Path("/usr/share/datasets"), Path("/usr/local/share/datasets"))


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """A complete copy: `files` maps the canonical file name to where it is (perhaps with `.gz`)."""

    source: Source
    folder: Path
    layout: str
    """`plain` (idx or binary records), `python` (the pickled CIFAR batches) or `tfds` (TensorFlow Datasets' records)."""
    files: dict[str, Path]


def default_folder() -> Path:
    """Where `conveyor data get` puts files when no folder is given."""
    return cache_folder() / "data"


def copy_in(source: Source, folder: Path) -> Copy | None:
    """The copy directly inside `folder`, if every file is there."""
    for layout, names in (("plain", source.files), ("python", source.python_files)):
        found = {name: path for name in names if (path := _plain_or_zipped(folder, name)) is not None}
        if names and len(found) == len(names):
            return Copy(source, folder, layout, found)
    return None


def copy_below(source: Source, folder: Path) -> Copy | None:
    """The copy in `folder` or in one of the sub-folders where it usually is."""
    for candidate in _candidates(source, folder):
        if (found := copy_in(source, candidate)) is not None:
            return found
    for candidate in tfds.folders(source.name, folder):
        if files := tfds.small_files(source.name, candidate):
            return Copy(source, candidate, "tfds", files)
    return None


def search(name: str, data_dir: Path | None) -> Copy | None:
    """A copy of `name`: only below `data_dir` when it is given, else wherever programs usually keep such files."""
    source = SOURCES[name]
    roots = [data_dir] if data_dir is not None else list(usual_roots())
    for root in roots:
        if (found := copy_below(source, root)) is not None:
            return found
    return None


def usual_roots() -> Iterator[Path]:
    """Data folders in the order in which they are searched: variables first, then ours, then other programs'."""
    for variable in ("DATA_DIR", "DATASETS_DIR", "TFDS_DATA_DIR", "TORCH_HOME"):
        if os.environ.get(variable):
            yield user_path(os.environ[variable])
    yield default_folder()
    yield Path("data")
    home = Path.home()
    for name in ("data", "datasets", ".torch/datasets", ".cache/torch/datasets", "tensorflow_datasets"):
        yield home / name
    yield from SYSTEM_FOLDERS


def count_images(copy: Copy) -> dict[str, int] | None:
    """Images by split, from sizes and headers without reading pixels; None where that is not possible."""
    if copy.layout == "tfds":
        prepared = tfds.counts(copy.folder) or {}
        both = {"train": prepared.get("train", 0), "validation": prepared.get("test", 0)}
        return both if all(both.values()) else None
    if copy.layout != "plain":
        return None
    counts = {"train": 0, "validation": 0}
    for name, path in copy.files.items():
        key = "validation" if name.startswith(("test", "t10k")) else "train"
        if name.endswith(".bin"):
            if is_zipped(path):
                return None
            counts[key] += path.stat().st_size // (3074 if copy.source.name == "cifar100" else 3073)
        elif "labels-idx1" in name:
            try:
                with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
                    counts[key] += int.from_bytes(file.read(8)[4:], "big")
            except (OSError, EOFError, zlib.error):
                return None  # damaged: reported when the file is read
    return counts if all(counts.values()) else None


def missing(name: str, data_dir: Path | None) -> UserError:
    """The error for a set that is not there: what was looked for, where, and what helps."""
    source = SOURCES[name]
    if data_dir is not None and not data_dir.exists():
        return UserError(
            f"the data folder {data_dir} does not exist: fetch {name} into it with `conveyor data get {name} --data-dir "
            f"{data_dir}` or name another with --data-dir"
        )
    where = str(data_dir) if data_dir is not None else ", ".join(str(root) for root in usual_roots())
    return UserError(
        f"{name} is not here: no folder with {', '.join(list(source.files)[:2])}, ... was found in {where}; "
        f"fetch it with `conveyor data get {name}` or name its folder with --data-dir"
    )


def _candidates(source: Source, folder: Path) -> Iterator[Path]:
    yield folder
    for pattern in (source.folder, source.python_folder, source.name, *source.other_folders):
        if "*" in pattern:
            yield from sorted(folder.glob(pattern))
        elif pattern:
            yield folder / pattern


def _plain_or_zipped(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder / f"{name}.gz", folder / name.replace("-idx", ".idx")):
        if candidate.is_file():
            return candidate
    return None
