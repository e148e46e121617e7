"""Fetching from a server on this machine: resume, checksums, mirrors, refusals, one worker for all."""

import gzip
import hashlib
import http.server
import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.data.small import make_cifar10, make_mnist

from conveyor.data.formats import acquire, locate, sources
from conveyor.data.formats.download import fetch, md5_of
from conveyor.data.formats.sources import Download, Source
from conveyor.errors import UserError
from conveyor.options.data import DataOptions

CONTENT = bytes(range(256)) * 2000


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; `cut` breaks the first answers off after that many bytes; requests are written down."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.cut: list[int] = []
        self.failures: list[int] = []
        self.ranges = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        content = self.server.files.get(self.path.lstrip("/"))
        if self.server.failures:
            self.send_error(self.server.failures.pop(0))
            return
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut.pop(0)] if self.server.cut else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def described(name: str, content: bytes) -> Download:
    return Download(name, len(content), hashlib.md5(content).hexdigest())


def test_a_file_arrives_and_is_not_fetched_twice(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    for _ in range(2):
        path = fetch(described("a.bin", CONTENT), [server.address], tmp_path / "new" / "folder")
        assert path.read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_a_broken_connection_is_continued(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    server.cut = [300_000]
    path = fetch(described("a.bin", CONTENT), [server.address], tmp_path, pause=0.01)
    assert path.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=300000-"]
    assert not list(tmp_path.glob("*.part"))


def test_a_later_process_continues(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(described("a.bin", CONTENT), [server.address], tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/a.bin", "bytes=1000-")]


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    server.ranges = False
    (tmp_path / "a.bin.part").write_bytes(b"x" * 1000)
    assert fetch(described("a.bin", CONTENT), [server.address], tmp_path).read_bytes() == CONTENT


def test_busy_servers_are_asked_again_and_missing_files_are_not(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    server.failures = [503]
    assert fetch(described("a.bin", CONTENT), [server.address], tmp_path, pause=0.01).read_bytes() == CONTENT
    server.requests.clear()
    with pytest.raises(UserError, match="Not Found"):
        fetch(described("b.bin", CONTENT), [server.address], tmp_path, pause=0.01)
    assert len(server.requests) == 1


def test_a_wrong_file_is_refused_and_the_next_mirror_asked(server: Server, tmp_path: Path) -> None:
    server.files["bad/a.bin"] = CONTENT[::-1]
    server.files["good/a.bin"] = CONTENT
    wanted = described("a.bin", CONTENT)
    with pytest.raises(UserError, match="MD5"):
        fetch(wanted, [server.address + "bad/"], tmp_path)
    assert not list(tmp_path.iterdir())
    path = fetch(wanted, [server.address + "bad/", server.address + "good/"], tmp_path)
    assert md5_of(path) == wanted.md5


def test_a_server_that_sends_too_much_is_stopped(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT * 2
    with pytest.raises(UserError, match="more than the expected"):
        fetch(described("a.bin", CONTENT), [server.address], tmp_path, pause=0.01)


def test_without_a_network_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"refused.*--mirror") as error:
        fetch(described("a.bin", CONTENT), ["http://127.0.0.1:1/"], tmp_path, pause=0.01)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("mirror", ["nohost/", "http://[/"])
def test_a_mirror_that_is_no_address_is_one_sentence(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(UserError, match=r"cannot fetch a\.bin"):
        fetch(described("a.bin", CONTENT), [mirror], tmp_path, pause=0.01)


def small_mnist(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    make_mnist(tmp_path / "made")
    downloads = []
    for path in sorted((tmp_path / "made").iterdir()):
        content = gzip.compress(path.read_bytes())
        server.files[path.name + ".gz"] = content
        downloads.append(described(path.name + ".gz", content))
    source = Source(
        "mnist", (server.address,), tuple(downloads), "mnist", dict.fromkeys(sources.SOURCES["mnist"].files, "")
    )
    monkeypatch.setitem(sources.SOURCES, "mnist", source)
    return source


def test_a_missing_set_is_fetched_on_first_use(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from conveyor.data import open_dataset
    from conveyor.options import Options

    small_mnist(server, tmp_path, monkeypatch)
    with pytest.raises(UserError, match="conveyor data get mnist"):
        open_dataset(Options().replace(data="mnist", download=False), "train")
    assert not server.requests
    assert len(open_dataset(Options().replace(data="mnist"), "train")) == 24
    assert "not here: fetching" in caplog.text
    assert len(server.requests) == 4
    open_dataset(Options().replace(data="mnist", download=False), "validation")


def test_an_archive_is_unpacked_without_trusting_its_names(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cifar10(tmp_path / "made")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path in sorted((tmp_path / "made").iterdir()):
            tar.add(path, f"../../cifar-10-batches-bin/{path.name}")
        link = tarfile.TarInfo("evil.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    server.files["cifar-10-binary.tar.gz"] = buffer.getvalue()
    known = sources.SOURCES["cifar10"]
    download = described("cifar-10-binary.tar.gz", buffer.getvalue())
    monkeypatch.setitem(
        sources.SOURCES,
        "cifar10",
        Source("cifar10", (server.address,), (download,), known.folder, dict.fromkeys(known.files, "")),
    )
    copy = acquire.get("cifar10", tmp_path / "a" / "b" / "c")
    assert sorted(path.name for path in copy.folder.iterdir()) == sorted(known.files)
    assert (copy.folder / "test_batch.bin").read_bytes() == (tmp_path / "made" / "test_batch.bin").read_bytes()
    monkeypatch.setattr(acquire, "LARGEST", 1000)  # a small archive may hold files that fill the disk
    with pytest.raises(UserError, match=r"is damaged \(data_batch_1\.bin would have \d+ bytes\)"):
        acquire.get("cifar10", tmp_path / "d")


WORKER = """
import sys
from pathlib import Path
from conveyor.data.formats import acquire, sources
from conveyor.data.formats.sources import Download, Source
content = Path(sys.argv[3]).read_bytes()
import hashlib
sources.SOURCES["mnist"] = Source("mnist", (sys.argv[1],), (Download("x.bin", len(content), hashlib.md5(content).hexdigest()),), "mnist", {"x.bin": ""})
print(acquire.get("mnist", Path(sys.argv[2])).folder)
"""


def test_of_several_workers_one_fetches(server: Server, tmp_path: Path) -> None:
    server.files["x.bin"] = CONTENT
    (tmp_path / "content").write_bytes(CONTENT)
    command = [sys.executable, "-c", WORKER, server.address, str(tmp_path / "data"), str(tmp_path / "content")]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [worker.communicate(timeout=60)[0].strip() for worker in workers]
    assert answers == [str(tmp_path / "data" / "mnist")] * 3
    assert len(server.requests) == 1


@pytest.mark.parametrize("where", ["MNIST/raw", "mnist", ".", "FashionMNIST/../MNIST/raw"])
def test_copies_of_other_programs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    (tmp_path / "FashionMNIST").mkdir()
    make_mnist(tmp_path / where)
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path))
    found = acquire.obtain("mnist", DataOptions(download=False))
    assert found.layout == "plain"
    assert len(found.files) == 4


def test_python_layout_and_extracted_archives_are_found(tmp_path: Path) -> None:
    source = sources.SOURCES["cifar10"]
    for name in source.python_files:
        (tmp_path / "torch" / "cifar-10-batches-py").mkdir(parents=True, exist_ok=True)
        (tmp_path / "torch" / "cifar-10-batches-py" / name).write_bytes(b"")
    found = locate.search("cifar10", tmp_path / "torch")
    assert found is not None
    assert found.layout == "python"
    make_cifar10(tmp_path / "tfds" / "downloads" / "extracted" / "TAR_GZ.abc" / "cifar-10-batches-bin")
    found = locate.search("cifar10", tmp_path / "tfds")
    assert found is not None
    assert found.layout == "plain"


def test_a_half_copy_is_not_a_copy(tmp_path: Path) -> None:
    make_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    assert locate.search("cifar10", tmp_path) is None
