"""Files that hold many images: WebDataset tar shards and Hugging Face parquet files, read in any order. No torch here.

A tar file is read in place: its headers say where each image lies. The columns of a parquet file are compressed in
groups of rows, so its images are copied once into a plain file in the cache folder. Both give (file, first byte, length).
"""

import contextlib
import functools
import io
import itertools
import logging
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conveyor.data.formats import folders, lists, tfrecord_dataset
from conveyor.data.formats.listing import Listing
from conveyor.data.formats.lock_file import exclusive
from conveyor.data.formats.tfrecord import cached_as
from conveyor.errors import UserError
from conveyor.files import make_parent, open_replacing, parse_json, write_atomically
from conveyor.monitor.progress import mapped

log = logging.getLogger(__name__)

_SPLIT = re.compile(r"(?:^|[-_/.])(train|training|validation|valid|val|test)(?=$|[-_/.\d])")
_BATCH = 256
_DAMAGED = (OSError, ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
"""What numpy raises for a file of arrays that is cut off or changed."""
_WAIT = 24 * 3600.0


class Index(NamedTuple):
    """The images of one file: names, classes (several joined with `;`), int64 [N, 2] first byte and length."""

    names: Sequence[str]
    labels: Sequence[str]
    where: Any


def find(root: Path) -> dict[str, list[Path]]:
    """The packed files in `root` or its sub-folders by split, `all` where no name says one; empty without any."""
    if not root.is_dir() or folders.has_images(root):
        return {}
    for pattern in ("*.tar", "*/*.tar", "*.parquet", "*/*.parquet"):
        found: dict[str, list[Path]] = {}
        for path in sorted(root.glob(pattern)):
            words = _SPLIT.findall(f"{path.parent.name if '/' in pattern else ''}/{path.stem}".lower())
            found.setdefault(words[-1] if words else "all", []).append(path)
        if found:
            return _splits(found)
    return {}


def read(files: dict[str, list[Path]]) -> Listing:
    """The images of the packed files; the index of each is kept in the cache folder as long as the file is unchanged."""
    key = tuple((split, path.resolve(), path.stat().st_mtime_ns) for split, paths in files.items() for path in paths)
    return _read(key)


@functools.lru_cache(maxsize=2)
def _read(key: tuple[tuple[str, Path, int], ...]) -> Listing:
    indexes = list(mapped(lambda one: _index(one[1]), key, "Index", threads=8, unit="files"))
    root, first = key[0][1].parent, key[0][1]
    given = _class_names(first) if first.suffix == ".parquet" else tfrecord_dataset.label_names(root)

    def named(text: str) -> tuple[str, ...]:
        parts = [part for part in text.split(";") if part]
        return tuple(given[int(p)] if given and p.isdecimal() and int(p) < len(given) else p for p in parts)

    images: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    places: dict[str, list[Any]] = {}
    packs: dict[str, list[Path]] = {}
    for (split, path, _), index in zip(key, indexes, strict=True):
        number = len(packs.setdefault(split, []))
        packs[split].append(path if path.suffix == ".tar" else _copy_of(path))
        images.setdefault(split, []).extend(zip(index.names, map(named, index.labels), strict=True))
        places.setdefault(split, []).append(np.insert(index.where, 0, number, axis=1))
    classes = given or lists.in_order({name for _, part in images["train"] for name in part})
    pairs, sets = lists.numbered(images, classes, first)
    several = any(len(one) != 1 for part in sets.values() for one in part)
    return Listing(
        root,
        tuple(classes),
        pairs,
        label_sets=sets if several else {},
        packs={split: tuple(part) for split, part in packs.items()},
        places={split: np.concatenate(part) for split, part in places.items()},
    )


def _splits(found: dict[str, list[Path]]) -> dict[str, list[Path]]:
    named = {
        split: next((found[name] for name in names if name in found), [])
        for split, names in folders.SPLIT_FOLDERS.items()
    }
    if not named["train"]:
        return {"train": found["all"]} if "all" in found else {}
    return {split: paths for split, paths in named.items() if paths}


def _copy_of(path: Path) -> Path:
    return cached_as(path, "packed", ".bin")


def _index(path: Path) -> Index:
    """The index of one file, from the cache folder if it is there; one process makes it, others wait."""
    cached = cached_as(path, "packed", ".npz")
    try:
        make_parent(cached)
    except OSError as error:
        raise UserError(f"the index of {path} needs a cache folder: set CONVEYOR_CACHE ({error.strerror})") from None
    with exclusive(cached.with_suffix(".lock"), _WAIT):
        if cached.is_file() and (path.suffix == ".tar" or _copy_of(path).is_file()):
            # A damaged one is made again.
            with (
                contextlib.suppress(*_DAMAGED),
                open(cached, "rb") as file,
                np.load(file, allow_pickle=False) as stored,
            ):
                return Index(stored["names"].tolist(), stored["labels"].tolist(), stored["where"])
        rows = list(_tar(path) if path.suffix == ".tar" else _parquet(path))
        if not rows:
            raise UserError(f"{path} holds no images: it needs samples like 0001.jpg with 0001.cls")
        where = np.array([(first, length) for _, _, first, length in rows], np.int64)
        index = Index([row[0] for row in rows], [row[1] for row in rows], where)
        buffer = io.BytesIO()
        np.savez(buffer, names=np.array(index.names), labels=np.array(index.labels), where=where)
        write_atomically(cached, buffer.getvalue())
        return index


def _tar(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """(name, label, first byte, length) of each sample: neighbouring members that differ after the first dot only."""
    try:
        with tarfile.open(path, "r:") as archive:
            members = (member for member in archive if member.isreg())
            for base, parts in itertools.groupby(members, lambda one: _base(one.name)):
                image = label = None
                for member in parts:
                    suffix = member.name[len(base) :].lower()
                    if suffix.endswith(folders.IMAGE_SUFFIXES):
                        image = member
                    elif suffix in (".cls", ".json"):
                        content = archive.extractfile(member)
                        assert content is not None
                        label = _label(content.read(1 << 20).decode(), suffix) or label
                if image is None:
                    continue
                if label is None:
                    raise UserError(f"{path} has no {base}.cls for {image.name}: it is no WebDataset with labels")
                yield f"{path.name}/{image.name}", label, image.offset_data, image.size
    except (tarfile.TarError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path} is no plain tar file of samples ({error}): unpack compressed ones first") from None


def _base(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0]}"


def _label(text: str, suffix: str) -> str | None:
    if suffix == ".cls":
        return text.strip()
    document = parse_json(text)
    if not isinstance(document, dict):
        raise ValueError(f"{text[:20]!r} is no JSON object")
    value = next((document[key] for key in ("labels", "label", "cls") if key in document), None)
    return ";".join(str(one) for one in value) if isinstance(value, list) else None if value is None else str(value)


def _parquet(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """The same of a parquet file; its images are copied into the cache folder, one after the other."""
    import pyarrow as pa

    file = lists.parquet(path)
    image, label = _columns(path, file.schema_arrow)
    copy, position, number = _copy_of(path), 0, 0
    log.info("copying the images of %s to %s, once", path, copy)
    with open_replacing(copy) as target:
        for encoded, labels in _batches(path, file, image, label):
            if pa.types.is_struct(encoded.type):
                encoded = encoded.flatten()[encoded.type.get_field_index("bytes")]
            encoded = encoded.cast(pa.large_binary())
            if encoded.null_count:
                raise UserError(f"{path} has images without bytes: it names files that are not part of it")
            ends = np.frombuffer(encoded.buffers()[1], np.int64)[encoded.offset :][: len(encoded) + 1]
            target.write(memoryview(encoded.buffers()[2])[ends[0] : ends[-1]])
            for length, value in zip(np.diff(ends).tolist(), labels, strict=True):
                text = ";".join(map(str, value)) if isinstance(value, list) else str(value)
                yield f"{path.name}/{number}", text, position, length
                position, number = position + length, number + 1


def _batches(path: Path, file: Any, image: str, label: str) -> Iterator[tuple[Any, list[Any]]]:
    """(images as they are in the file, their labels), some rows at a time."""
    with lists.readable_parquet(path):
        for batch in file.iter_batches(_BATCH, columns=[image, label]):
            yield batch.column(image), batch.column(label).to_pylist()


def _columns(path: Path, schema: Any) -> tuple[str, str]:
    names = schema.names
    label = next((name for name in ("label", "labels", "fine_label") if name in names), None)
    image = next(
        (
            name
            for name in names
            if str(schema.field(name).type).startswith(("struct<bytes: binary", "binary", "large_binary"))
        ),
        None,
    )
    if image is None or label is None:
        raise UserError(f"{path} needs a column of images (bytes) and a column label; it has {', '.join(names)}")
    return image, label


def _class_names(path: Path) -> tuple[str, ...]:
    """The class names that `datasets` writes into the schema of a parquet file."""
    schema = lists.parquet(path).schema_arrow
    try:
        features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
        about = features[_columns(path, schema)[1]]
        return tuple(str(name) for name in (about.get("names") or about["feature"]["names"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return ()
