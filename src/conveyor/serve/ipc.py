"""Messages between the server and its engine processes: a header of twelve bytes, then the content."""

import socket
import struct

HEADER = struct.Struct("<IQ")
"""(number of images, or 0 for JSON; bytes of the content)."""
LARGEST = 1 << 32


def receive(connection: socket.socket) -> tuple[int, bytearray] | None:
    """The next message of a blocking socket; none when the other side is gone."""
    head = _exactly(connection, HEADER.size)
    if head is None:
        return None
    count, length = HEADER.unpack(head)
    if length > LARGEST:
        raise ValueError(f"a message of {length} bytes")
    content = _exactly(connection, length)
    return None if content is None else (count, content)


def send(connection: socket.socket, count: int, content: bytes | memoryview) -> None:
    connection.sendall(HEADER.pack(count, len(content)))
    connection.sendall(content)


def _exactly(connection: socket.socket, length: int) -> bytearray | None:
    buffer = bytearray(length)
    view, filled = memoryview(buffer), 0
    while filled < length:
        received = connection.recv_into(view[filled:])
        if received == 0:
            return None
        filled += received
    return buffer
