"""Run folders and data on object stores (s3://, gs://, any fsspec address): local copies, kept equal. No torch here.

A command works on local folders alone. The command line and the Python interface replace (`remote.front`) each address by a local folder that holds
what the store has, and a thread uploads what the command writes; `remote.data` brings the images. Nothing else knows
about addresses.
"""

import re


def is_address(text: object) -> bool:
    """Whether `text` is an address on a store, such as s3://bucket/run, and not a path or the address of a server."""
    return isinstance(text, str) and re.match(r"(?!https?:|grpc:)[a-z][a-z0-9+.-]*://.*[^/]", text) is not None
