"""TensorBoard event files, written without TensorBoard: it is a reader's tool and slow to import.

A file is a sequence of records `length (u64) | masked crc of length | data | masked crc of data`, little endian, where
`masked(c) = rotate_right(c, 15) + 0xa282ead8` and crc is CRC-32C. The data is an `Event` message; only these fields
are written: wall_time = 1 (double), step = 2, file_version = 3, summary = 5, session_log = 7.
"""

import os
import socket
import struct
import time
from pathlib import Path

import google_crc32c


def masked_crc(data: bytes) -> int:
    value: int = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """One record of the file."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _block(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _event(step: int, body: bytes, wall_time: float | None = None) -> bytes:
    when = time.time() if wall_time is None else wall_time
    return _varint(1 << 3 | 1) + struct.pack("<d", when) + _integer(2, step) + body


def scalar(tag: str, value: float) -> bytes:
    """A `Summary.Value` with tag = 1 and simple_value = 2 (float)."""
    return _block(1, _block(1, tag.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", value))


def text(tag: str, markdown: str) -> bytes:
    """A `Summary.Value` for the text page: tensor = 8 (dtype 1 = string 7, shape 2 = [1], string_val 8), metadata = 9."""
    shape = _block(2, _integer(1, 1))
    tensor = _integer(1, 7) + _block(2, shape) + _block(8, markdown.encode())
    metadata = _block(1, _block(1, b"text"))
    return _block(1, _block(1, tag.encode()) + _block(8, tensor) + _block(9, metadata))


class EventFile:
    """An event file in `folder`, named so that TensorBoard finds it; every event is one write."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        self.path = folder / f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        while self.path.exists():
            self.path = self.path.with_name(self.path.name + ".1")
        self._write(_event(0, _block(3, b"brain.Event:2"), now))

    def restart(self, step: int) -> None:
        """Everything that older files of the folder say about `step` and later is void (session_log status START)."""
        self._write(_event(step, _block(7, _integer(1, 1))))

    def add(self, step: int, values: list[bytes]) -> None:
        """A summary of `scalar` and `text` values at `step`."""
        if values:
            self._write(_event(step, _block(5, b"".join(values))))

    def _write(self, data: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, framed(data))
        finally:
            os.close(descriptor)
