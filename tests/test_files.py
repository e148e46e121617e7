"""Reading what is on the disk."""

import os
from pathlib import Path

import pytest

from conveyor.files import parse_json, read_regular, user_path


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, b"[" * 100_000, "{", "", b"\xff", "9" * 5000])
def test_whatever_is_wrong_with_a_document_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_documents_are_read() -> None:
    assert parse_json('{"a": [1, null]}') == parse_json(b'{"a": [1, null]}') == {"a": [1, None]}


def test_a_home_folder_is_that_of_a_user_who_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~$draft.jpg` is what office programs call their temporary files; `~name` may be a mistake: both are no traceback."""
    monkeypatch.setenv("HOME", "/home/me")
    assert user_path("~/photos") == Path("/home/me/photos")
    for name in ("~$draft.jpg", "~nobody-of-that-name/photos", "photos/~/x", "./~"):
        assert user_path(name) == Path(name)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe among photographs, to which nobody writes, would be waited for without end."""
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "link") == b"content"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="no regular file"):
            read_regular(path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "absent")
