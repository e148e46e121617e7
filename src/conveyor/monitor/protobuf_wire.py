"""The bytes of TensorFlow's files: records with their checksums, and the fields of the messages inside them.

A record is: length (uint64, little endian), masked CRC of the length (uint32), data, masked CRC of the data (uint32);
masked(c) = ((c >> 15 | c << 17) + 0xa282ead8) mod 2^32, c being the CRC-32C. TFRecord files (`data.formats.tfrecord`) and event files
(`monitor.eventfile`) are sequences of them.
"""

import struct

import google_crc32c

CRC = struct.Struct("<I")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of fields in a protobuf message: the low three bits of a field's key, whose other bits are its number."""


def masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """One record as it stands in the file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, CRC.pack(masked_crc(length)), data, CRC.pack(masked_crc(data))))


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def key(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def field(number: int, content: bytes) -> bytes:
    """A field that holds a string, bytes or a message."""
    return key(number, BYTES) + varint(len(content)) + content
