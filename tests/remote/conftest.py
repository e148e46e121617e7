"""A server of the S3 protocol (moto), started on loopback in an environment of its own."""

import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

PEERS = Path(os.environ.get("CONVEYOR_PEERS") or ".peers").resolve() / "store"


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of the server."""
    pytest.importorskip("s3fs", reason="the extra `remote` brings it")
    if not (PEERS / ".all").exists():
        pytest.skip("make peers installs the server of the S3 protocol")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(PEERS / "bin/moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urlopen(f"{address}/moto-api/", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield address
    finally:
        process.kill()  # asked to end, it waits for clients that keep their connections; it holds nothing
        process.wait()


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty bucket, known to this process and to those that it starts."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))
    import s3fs

    name = f"b-{uuid.uuid4().hex}"
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir(name)
    return f"s3://{name}"
