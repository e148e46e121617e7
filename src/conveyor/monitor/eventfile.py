"""TensorBoard event files, written without TensorBoard, which is slow to import and needed for reading only.

A file is a sequence of records (see `monitor.protobuf_wire`). The data of each is an `Event` message; only these fields
are written: wall_time = 1 (double), step = 2, file_version = 3, summary = 5, session_log = 7.
"""

import os
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from conveyor.files import append
from conveyor.monitor.protobuf_wire import FIXED32, FIXED64, VARINT, field, frame, key, varint

if TYPE_CHECKING:
    from conveyor.monitor.histograms import Histogram


def _integer(number: int, value: int) -> bytes:
    return key(number, VARINT) + varint(value)


def _event(step: int, body: bytes, wall_time: float | None = None) -> bytes:
    when = time.time() if wall_time is None else wall_time
    return key(1, FIXED64) + struct.pack("<d", when) + _integer(2, step) + body


def scalar(tag: str, value: float) -> bytes:
    """A `Summary.Value` with tag = 1 and simple_value = 2 (float)."""
    return field(1, field(1, tag.encode()) + key(2, FIXED32) + struct.pack("<f", value))


def text(tag: str, markdown: str) -> bytes:
    """A `Summary.Value` for the text page: tensor = 8 (dtype 1 = string 7, shape 2 = [1], string_val 8), metadata = 9."""
    shape = field(2, _integer(1, 1))
    tensor = _integer(1, 7) + field(2, shape) + field(8, markdown.encode())
    metadata = field(1, field(1, b"text"))
    return field(1, field(1, tag.encode()) + field(8, tensor) + field(9, metadata))


def histogram(tag: str, values: "Histogram") -> bytes:
    """A `Summary.Value` with histo = 5: min 1, max 2, num 3, sum 4, sum_squares 5 (doubles); bucket_limit 6, bucket 7 (lists)."""
    edges = values.edges
    numbers = (edges[0], edges[-1], values.counts.sum(), values.sum, values.sum_of_squares)
    body = b"".join(key(place, FIXED64) + struct.pack("<d", number) for place, number in enumerate(numbers, 1))
    body += field(6, edges[1:].astype("<f8").tobytes()) + field(7, values.counts.astype("<f8").tobytes())
    return field(1, field(1, tag.encode()) + field(5, body))


class EventFile:
    """An event file in `folder`, named so that TensorBoard finds it; every event is one write."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        now = time.time()
        self.path = folder / f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        while self.path.exists():
            self.path = self.path.with_name(self.path.name + ".1")
        self._write(_event(0, field(3, b"brain.Event:2"), now))

    def restart(self, step: int) -> None:
        """Invalidate what older files of the folder hold for `step` and later (session_log status START)."""
        self._write(_event(step, field(7, _integer(1, 1))))

    def add(self, step: int, values: list[bytes]) -> None:
        """A summary of `scalar`, `text` and `histogram` values at `step`."""
        if values:
            self._write(_event(step, field(5, b"".join(values))))

    def _write(self, data: bytes) -> None:
        append(self.path, frame(data))  # whole: a reader stops at half an event
