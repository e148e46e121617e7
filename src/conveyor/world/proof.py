"""HMAC-SHA-256: how the processes of a job prove to each other that they know its secret (no torch here)."""

import hmac

SIZE = 32
"""Bytes of a digest."""


def digest(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA-256; all parts but the last have a fixed length or come from a fixed list."""
    return hmac.digest(key, b"\0".join(parts), "sha256")
