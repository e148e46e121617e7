"""The store: what torch expects of one, and nothing for those who do not know the secret."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from conveyor.errors import UserError
from conveyor.launch import messages, secret
from conveyor.launch.rendezvous import remove_dead_sockets
from conveyor.launch.store import MAX_UNPROVED, UNIX, Server, Store

SECRET = b"known to the job alone"


@pytest.fixture(params=["unix", "tcp"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    made = Server(f"{UNIX}{tmp_path / 'store'}" if request.param == "unix" else "127.0.0.1:0", SECRET)
    yield made
    made.close()


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    made = Store(server.address, SECRET)
    yield made
    made.close()


def test_it_does_what_torchs_stores_do(store: Store) -> None:
    """The same calls on torch's own, through a prefix as torch uses it."""
    answers = []
    for one in (store, dist.HashStore()):
        prefixed = dist.PrefixStore("round 1", one)
        prefixed.set("a", b"\x00\xff")
        answers.append(
            [
                prefixed.get("a"),
                prefixed.add("n", 2),
                prefixed.add("n", -5),
                prefixed.get("n"),
                prefixed.compare_set("a", "x", "y"),
                prefixed.compare_set("a", b"\x00\xff", "y"),
                prefixed.compare_set("new", "", "first"),
                prefixed.compare_set("new", "", "second"),
                prefixed.check(["a", "n"]),
                prefixed.check(["a", "missing"]),
                prefixed.multi_get(["a", "new"]),
            ]
        )
    assert answers[0] == answers[1]


def test_waiting_ends_with_the_value_or_in_time(server: Server, store: Store) -> None:
    with pytest.raises(dist.DistStoreError, match="waiting for never"):
        store.wait(["never"], timedelta(seconds=0.05))
    other = Store(server.address, SECRET)
    late = threading.Timer(0.1, lambda: other.set("late", "here"))
    late.start()
    assert store.get("late") == b"here"
    late.join()
    other.close()


def test_a_request_that_was_broken_off_leaves_no_answer_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's exception in the middle of a request: the next one must not get its answer."""
    store.set("one", "1")
    store.set("two", "2")

    def stopped() -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(store._channel, "receive", stopped)
    with pytest.raises(KeyboardInterrupt):
        store.get("one")
    assert store.get("two") == b"2"


def connected(server: Server) -> socket.socket:
    unix = server.address.startswith(UNIX)
    one = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    host, _, port = server.address.rpartition(":")
    one.connect(server.address.removeprefix(UNIX) if unix else (host, int(port)))
    one.settimeout(10)
    return one


def ended(connection: socket.socket) -> bool:
    """Whether the server closed without another word."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_wrong_secret_is_refused(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with pytest.raises(
            UserError, match="does not accept this secret; every machine of a job needs the same secret"
        ):
            Store(server.address, b"a guess")
    assert caplog.text.count("a wrong secret") == 1, "one line for each address"


def test_another_start_that_looks_for_dead_sockets_is_no_stranger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of one user on one machine: the first one said that it had refused a connection."""
    server, looked = Server(f"{UNIX}{tmp_path / 'store'}", SECRET), threading.Event()
    monkeypatch.setattr(server, "greeted", lambda connection: looked.set())
    remove_dead_sockets(tmp_path)
    assert looked.wait(60)
    server.close()
    assert "refused" not in caplog.text


@pytest.mark.parametrize("content", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 4, b"\xff" * 64, bytes(64)])
def test_what_is_not_the_handshake_is_refused(server: Server, store: Store, content: bytes) -> None:
    with connected(server) as stranger:
        messages.read(stranger, len(messages.MAGIC) + messages.SIZE)
        stranger.sendall(content)
        assert ended(stranger)
    store.set("still", "served")


def test_a_server_without_the_secret_is_refused(tmp_path: Path) -> None:
    """Who took the socket's place is not told anything, either."""
    false = Server(f"{UNIX}{tmp_path / 'false'}", b"another one")
    try:
        with pytest.raises(UserError, match="does not accept this secret"):
            Store(false.address, SECRET)
    finally:
        false.close()


def test_changed_and_repeated_messages_are_refused(server: Server) -> None:
    body = json.dumps(["set", "key", "value"]).encode()

    def message(channel: messages.Channel, number: int, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + content + channel._mark(b"client", number, body)

    for first, second in [(body, body), (body.replace(b"value", b"other"), b"")]:
        with connected(server) as one:
            channel = messages.connect(one, SECRET, 10)
            one.sendall(message(channel, 0, first))
            if first == body:
                assert channel.receive() == "value"
                # The same bytes once more: their number has been used.
                one.sendall(message(channel, 0, second))
            assert ended(one)
    reader = Store(server.address, SECRET)
    assert reader.get("key") == b"value"
    reader.close()


def test_silent_unproved_do_not_keep_others_out(server: Server) -> None:
    """More than the server holds are connected and say nothing: who belongs here gets in at the first attempt."""
    strangers = [connected(server) for _ in range(MAX_UNPROVED + 50)]
    for one in strangers:
        # Greeted, so it takes up a place (or has lost it again).
        assert len(messages.read(one, len(messages.MAGIC))) == len(messages.MAGIC)
    friend = Store(server.address, SECRET, patience=0)
    friend.set("in", "time")
    for one in [*strangers, friend]:
        one.close()


def test_a_byte_now_and_then_is_no_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole handshake has one deadline: 64 bytes, one in each second, would be a minute."""
    monkeypatch.setattr(messages, "HANDSHAKE_SECONDS", 0.5)
    mine, other = socket.socketpair()
    over = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.05):
                other.send(b"x")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        with pytest.raises(TimeoutError):
            messages.accept(mine, SECRET)
    finally:
        over.set()
        dripping.join()
        mine.close()
        other.close()


def test_a_flood_does_not_keep_others_out(server: Server) -> None:
    """Someone connects again and again as fast as he can: who belongs here still gets in."""
    over = threading.Event()

    def flood() -> None:
        mine: list[socket.socket] = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                mine.append(connected(server))
            if len(mine) > 300:
                mine.pop(0).close()
        for one in mine:
            one.close()

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        friends = [Store(server.address, SECRET, patience=60) for _ in range(4)]
    finally:
        over.set()
        flooding.join()
    assert friends[0].add("in", 1) == 1
    for friend in friends:
        friend.close()


def test_the_oldest_of_the_busiest_address_makes_room(server: Server) -> None:
    """A stranger's address never closes the connections of another that are about to prove the secret."""
    pairs = [socket.socketpair() for _ in range(MAX_UNPROVED + 2)]
    names = ["friend", *["stranger"] * (MAX_UNPROVED - 2), "friend", "stranger", "stranger"]
    for (mine, _), name in zip(pairs, names, strict=True):
        server.greet(mine, name)
    for _, other in pairs:
        other.setblocking(False)
    gone = []
    for number, (_, other) in enumerate(pairs):
        with contextlib.suppress(BlockingIOError):
            assert other.recv(1) == b""
            gone.append(number)
    assert gone == [1, 2]
    for mine, other in pairs:
        server.greeted(mine)
        mine.close()
        other.close()


def test_where_the_secret_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert secret.load({"CONVEYOR_SECRET": "x" * 16}) == b"x" * 16
    file = tmp_path / "secret"
    file.write_text("y" * 20 + "\n")
    file.chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        secret.load({"CONVEYOR_SECRET_FILE": str(file)})
    file.chmod(0o600)
    assert secret.load({"CONVEYOR_SECRET_FILE": str(file)}) == b"y" * 20
    assert secret.load({"CONVEYOR_SECRET": "x" * 16}, str(file)) == b"y" * 20
    with pytest.raises(UserError, match="shorter than 16"):
        secret.load({"CONVEYOR_SECRET": "short"})
    with pytest.raises(UserError, match="cannot be read: no such file"):
        secret.load({}, str(tmp_path / "missing"))
    own = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    made = secret.load(own)
    assert len(made) == 64
    assert secret.load(own) == made
    assert (tmp_path / "home/conveyor/secret").stat().st_mode & 0o777 == 0o600
    assert [one.name for one in (tmp_path / "home/conveyor").iterdir()] == ["secret"]


def test_the_private_folder_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = secret.private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(UserError, match="belongs to you alone"):
        secret.private_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(UserError, match="belongs to you alone"):
        secret.private_folder()


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    server = Server(f"{UNIX}{folder / 'store'}", SECRET)
    Store(server.address, SECRET).close()
    server.close()
    assert not os.listdir(folder)
