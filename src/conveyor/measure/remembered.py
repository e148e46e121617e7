"""Small results of measurements, kept between runs as JSON in the cache folder."""

import hashlib
import json
import logging
from importlib import metadata
from pathlib import Path
from typing import Any

from conveyor.files import make_parent, read_object, write_atomically

_logger = logging.getLogger(__name__)


def key_of(*parts: Any) -> str:
    """A name for everything that a result depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def recall(cache: Path, key: str) -> Any:
    """What was remembered, or none; a damaged file is one without entries."""
    return read_object(cache).get(key)


def remember(cache: Path, key: str, value: Any) -> None:
    known = read_object(cache)
    known[key] = value
    try:
        make_parent(cache)
        write_atomically(cache, json.dumps(known, indent=1))
    except OSError as error:
        _logger.info("a measurement could not be remembered in %s: %s", cache, error)
