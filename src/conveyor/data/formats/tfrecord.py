"""TFRecord files: sequences of records (see `monitor.protobuf_wire`), with an index that makes any of them reachable. No TensorFlow."""

import contextlib
import hashlib
import io
import os
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from conveyor.errors import UserError
from conveyor.files import cache_folder, make_parent, open_replacing, write_atomically
from conveyor.monitor.progress import mapped
from conveyor.monitor.protobuf_wire import CRC, frame, masked_crc

Offsets = npt.NDArray[np.int64]

_HEADER = struct.Struct("<QI")
_FRAME = _HEADER.size + CRC.size


def write_records(path: Path, records: Iterable[bytes]) -> int:
    """Write a file that is complete or absent; returns the number of records."""
    count = 0
    with open_replacing(path) as file:
        for record in records:
            file.write(frame(record))
            count += 1
    return count


def read_record(path: Path, offset: int, length: int) -> bytes:
    """The data of the record that begins at `offset`, checked."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    try:
        whole = os.pread(handle, length + _FRAME, offset)
    finally:
        os.close(handle)
    data = whole[_HEADER.size : _HEADER.size + length]
    if len(whole) != length + _FRAME:
        raise _damaged(path, offset, "the file ends inside the record")
    if CRC.unpack_from(whole, _HEADER.size + length)[0] != masked_crc(data):
        raise _damaged(path, offset, "the checksum of its data is wrong")
    return data


def scan(path: Path) -> Offsets:
    """Offset and length of each record, int64 [N, 2], from the frames alone; damage gives file and offset."""
    size = path.stat().st_size
    found: list[tuple[int, int]] = []
    offset = 0
    with open(path, "rb") as file:
        while offset < size:
            file.seek(offset)
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                raise _damaged(path, offset, "the file ends inside the record's header")
            length, crc = _HEADER.unpack(header)
            if crc != masked_crc(header[:8]):
                raise _damaged(path, offset, "the checksum of its length is wrong")
            if offset + length + _FRAME > size:
                raise _damaged(path, offset, "the file ends inside the record")
            found.append((offset, length))
            offset += length + _FRAME
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def index_of(path: Path) -> Offsets:
    """`scan`, remembered in the cache folder as long as the file keeps its size and time."""
    cached = cached_as(path, "index", ".npy")
    try:
        offsets: Offsets = np.load(cached, allow_pickle=False)
        if offsets.ndim == 2 and offsets.shape[1] == 2 and offsets.dtype == np.int64:
            return offsets
    except (OSError, ValueError, EOFError):
        pass
    offsets, content = scan(path), io.BytesIO()
    np.save(content, offsets, allow_pickle=False)
    # A cache folder that cannot be written costs time in the next run, nothing else.
    with contextlib.suppress(OSError, UserError):
        make_parent(cached)
        write_atomically(cached, content.getvalue())
    return offsets


def cached_as(path: Path, folder: str, suffix: str) -> Path:
    """Where the cache keeps what was made of `path`: another name once the file has changed."""
    status = path.stat()
    key = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    return cache_folder() / folder / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}{suffix}"


def index_files(paths: list[Path]) -> list[Offsets]:
    """The index of many files, several at a time."""
    return list(mapped(index_of, paths, "Index", threads=8, unit="files"))


def _damaged(path: Path, offset: int, what: str) -> UserError:
    return UserError(f"{path} is damaged at byte {offset}: {what}; fetch or build the file again")
