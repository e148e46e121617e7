"""The first failing worker's own error is the one that is shown."""

import json
from pathlib import Path

import pytest

from conveyor.errors import USER_ERROR, UserError
from conveyor.launch import failure
from conveyor.launch.failure import (
    LOST_PEER,
    OWN_ERROR,
    Failure,
    exit_code,
    first,
    is_peer_loss,
    read,
    record,
)


def chained() -> BaseException:
    try:
        try:
            raise UserError("lower it")
        except UserError as inner:
            raise RuntimeError("stage 1 failed to run forward") from inner
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("x"), USER_ERROR),
        (chained(), USER_ERROR),
        (ValueError("x"), OWN_ERROR),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"), LOST_PEER),
        (ConnectionResetError("Connection reset by peer"), LOST_PEER),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    assert exit_code(error) == code
    assert is_peer_loss(error) == (code == LOST_PEER)


def test_an_error_travels_through_its_file(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    assert record(chained(), {"TORCHELASTIC_ERROR_FILE": str(path)}) == USER_ERROR
    found = read(3, USER_ERROR, str(path))
    assert found.sentence() == "lower it"
    assert "stage 1 failed" in found.trace
    assert "timestamp" in json.loads(path.read_text())["message"]["extraInfo"], "the form that torchrun reads"
    assert read(3, 9, str(tmp_path / "absent")).sentence() == "worker 3 ended with exit code 9."


def test_a_lost_connection_is_told_in_our_words(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    error = RuntimeError("[../gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:26021: Connection reset by peer.")
    assert record(error, {"TORCHELASTIC_ERROR_FILE": str(path)}) == LOST_PEER
    found = read(0, LOST_PEER, str(path))
    assert found.sentence() == "worker 0: the connection to another worker was lost."
    assert "pair.cc" in found.trace


def test_the_cause_comes_before_its_echoes() -> None:
    echo, cause, ended = (
        Failure(0, LOST_PEER, "peer", when=1.0),
        Failure(1, OWN_ERROR, "bug", when=2.0),
        Failure(2, -15),
    )
    assert first([echo, ended, cause]) is cause
    killed = Failure(3, -9)
    assert first([echo, ended, killed]) is killed
    assert first([killed, cause]) is cause
    assert killed.sentence() == "worker 3 was killed by SIGKILL."
    assert (killed.may_restart, echo.may_restart, cause.may_restart) == (True, True, False)


def test_a_sentence_for_the_user_is_the_cause() -> None:
    error = UserError("the host has no address")
    error.__cause__ = OSError("name or service not known")
    assert failure.exit_code(error) == USER_ERROR
    assert failure.in_step(USER_ERROR, {"SLURM_STEP_NUM_TASKS": "2"}) == 98
    assert failure.in_step(USER_ERROR, {}) == USER_ERROR
