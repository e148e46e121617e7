"""Two machines on one: network namespaces with a cable between them; nothing else is contacted."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

ADDRESSES = ("10.213.77.1", "10.213.77.2")


def ip(*words: str, check: bool = True) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["ip", *words], check=check, capture_output=True)


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two namespaces, each with a loopback and one end of a cable."""
    if shutil.which("ip") is None:
        pytest.skip("the ip command is not installed")
    names = (f"conv{os.getpid()}a", f"conv{os.getpid()}b")
    if ip("netns", "add", names[0], check=False).returncode:
        pytest.skip("network namespaces are not permitted here")
    try:
        ip("netns", "add", names[1])
        made = ip(
            "link", "add", "cable0", "netns", names[0], "type", "veth", "peer", "cable0", "netns", names[1], check=False
        )
        if made.returncode:
            pytest.skip("virtual network cables are not permitted here")
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable0")
            ip("-n", name, "link", "set", "cable0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "delete", name, check=False)
