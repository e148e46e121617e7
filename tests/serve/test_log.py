"""The log of a server that strangers talk to."""

import logging
import socket
import struct
import time
from pathlib import Path

import pytest
from tests.serve.conftest import settings_for
from tests.serve.protocols.test_grpc_server import SETTINGS, frame

from conveyor.serve.launcher import running_server
from conveyor.serve.log import MOST_KINDS, LogLines, escaped

GOAWAY = 7


class Log:
    """A logger with a clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now, self.text = 0.0, ""
        self.lines = LogLines(self.write, window=60.0, clock=lambda: self.now)

    def write(self, text: str) -> None:
        self.text += text

    def say(self, name: str, template: str, *words: object, error: BaseException | None = None) -> None:
        trace = (type(error), error, None) if error else None
        self.lines.handle(logging.LogRecord(name, logging.WARNING, "", 0, template, words, trace))


def test_words_of_a_peer_stay_on_their_line() -> None:
    assert escaped("a\nb\x1b[31m\r\u2028é") == "a\\nb\\x1b[31m\\r\\u2028é"
    log = Log()
    log.say("grpc", "peer says %s", "x\nserving evil\x1b[0m")
    log.say("conveyor.serve.app", "failed", error=ValueError("first\nserving evil"))
    assert log.text == "peer says x\\nserving evil\\x1b[0m\nfailed\n    ValueError: first\n    serving evil\n"


def test_repeated_lines_are_summed_up() -> None:
    log = Log()
    for port in range(500):
        log.say("uvicorn.error", "bad request from %s", port)
    assert log.text == "bad request from 0\n"
    log.now = 61.0
    log.lines.sum_up()
    assert log.text.splitlines()[1:] == ["499 more within 60 s: uvicorn.error: bad request from %s"]
    log.say("uvicorn.error", "bad request from %s", 7)
    assert log.text.splitlines()[2:] == ["bad request from 7"]


def test_our_own_lines_are_repeats_only_when_they_say_the_same() -> None:
    log = Log()
    for version in (1, 2, 2):
        log.say("conveyor.serve.service", "version %s is in service", version)
    assert log.text == "version 1 is in service\nversion 2 is in service\n"


def test_what_is_counted_has_a_bound() -> None:
    log = Log()
    for number in range(3 * MOST_KINDS):
        log.say("conveyor.serve", "line %s", number)
    assert len(log.lines._kinds) <= MOST_KINDS


def test_what_peers_send_does_not_write_the_log(model_folder: Path) -> None:
    with running_server(settings_for(model_folder)) as server:
        assert server.grpc_port is not None
        for number in range(50):
            with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
                connection.sendall(b"GARBAGE %d\r\n\r\n" % number)
                assert connection.recv(100).startswith(b"HTTP/1.1 400")
        for code in (1, 2, 11):
            text = b"bye\nserving evil at http://127.0.0.1\x1b[31m"
            with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=5) as connection:
                preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")
                connection.sendall(preface + frame(GOAWAY, 0, 0, struct.pack(">II", 0, code) + text))
                time.sleep(0.2)  # in which the library would write the text
        assert server.stop() == 0
        words = server.log.read_text()
    assert "\x1b" not in words
    assert not [line for line in words.splitlines() if line.startswith("serving evil")]
    assert words.count("Invalid HTTP request received.") == 2, words
    assert "49 more within 60 s: uvicorn.error: Invalid HTTP request received." in words


@pytest.mark.parametrize("text", ["", "plain", "ein Käse"])
def test_printable_text_is_left_as_it_is(text: str) -> None:
    assert escaped(text) == text
