"""The `Example` messages inside TFRecord files, read and written at the level of protobuf's wire format.

Example { Features features = 1 }, Features { map<string, Feature> feature = 1 },
Feature { oneof: BytesList = 1, FloatList = 2, Int64List = 3 }, each with `repeated value = 1` (numbers packed or not).
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from conveyor.monitor.protobuf_wire import BYTES, FIXED32, FIXED64, VARINT, field, varint

Value: TypeAlias = Sequence[bytes] | Sequence[float] | Sequence[int]

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


def encode_example(features: Mapping[str, Value]) -> bytes:
    """A serialised Example; a feature's kind follows from its first value, names are sorted as protobuf would."""
    entries = []
    for name in sorted(features):
        entry = field(1, name.encode()) + field(2, _encode_feature(features[name]))
        entries.append(field(1, entry))
    return field(1, b"".join(entries))


def decode_example(data: bytes, wanted: frozenset[str] | None = None) -> dict[str, Value]:
    """The features of a serialised Example, only those of `wanted` when it is given; ValueError when it is none."""
    features: dict[str, Value] = {}
    for number, content in _fields(data):
        if number != 1 or not isinstance(content, bytes):
            continue
        for inner, entry in _fields(content):
            if inner != 1 or not isinstance(entry, bytes):
                continue
            name, feature = "", b""
            for part, value in _fields(entry):
                if part == 1 and isinstance(value, bytes):
                    name = value.decode()
                elif part == 2 and isinstance(value, bytes):
                    feature = value
            if wanted is None or name in wanted:
                features[name] = _decode_feature(feature)
    return features


def _encode_feature(values: Value) -> bytes:
    first = values[0] if values else 0
    if isinstance(first, bytes):
        return field(_BYTES_LIST, b"".join(field(1, value) for value in values if isinstance(value, bytes)))
    if isinstance(first, float):
        return field(_FLOAT_LIST, field(1, struct.pack(f"<{len(values)}f", *values)))
    packed = b"".join(varint(int(value) & (1 << 64) - 1) for value in values)
    return field(_INT64_LIST, field(1, packed))


def _decode_feature(data: bytes) -> Value:
    for kind, content in _fields(data):
        if not isinstance(content, bytes):
            raise ValueError("a feature without a list")
        items = list(_fields(content))
        if kind == _BYTES_LIST:
            return [value for _, value in items if isinstance(value, bytes)]
        if kind == _FLOAT_LIST:
            raw = b"".join(
                value if isinstance(value, bytes) else struct.pack("<I", value & 0xFFFFFFFF) for _, value in items
            )
            return list(struct.unpack(f"<{len(raw) // 4}f", raw[: len(raw) // 4 * 4]))
        if kind == _INT64_LIST:
            numbers: list[int] = []
            for _, value in items:
                numbers += list(_varints(value)) if isinstance(value, bytes) else [value]
            return [number - (1 << 64) if number >> 63 else number for number in numbers]
    return []


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(field number, content) of a message; numbers as int, strings and messages as bytes."""
    position, end = 0, len(data)
    while position < end:
        key, position = _read_varint(data, position)
        kind = key & 7
        if kind == BYTES:
            length, position = _read_varint(data, position)
            if position + length > end:
                raise ValueError("a field reaches beyond its message")
            yield key >> 3, data[position : position + length]
            position += length
        elif kind == VARINT:
            value, position = _read_varint(data, position)
            yield key >> 3, value
        elif kind in (FIXED32, FIXED64):
            width = 4 if kind == FIXED32 else 8
            if position + width > end:
                raise ValueError("a field reaches beyond its message")
            yield key >> 3, int.from_bytes(data[position : position + width], "little")
            position += width
        else:
            raise ValueError(f"wire type {kind} is unknown")


def _varints(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _read_varint(data, position)
        yield value


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a number is cut short")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, position
        shift += 7
