import errno
import fcntl
from pathlib import Path

import pytest

from conveyor.data.formats.lock_file import exclusive
from conveyor.errors import UserError

NO_LOCKS = OSError(errno.ENOLCK, "No locks available")


def test_a_lock_that_is_never_freed_gives_a_message(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock"), pytest.raises(UserError, match="held"):  # noqa: SIM117
        with exclusive(tmp_path / "lock", longest_wait=0.15):
            pass


def test_a_file_that_cannot_be_opened_or_locked_gives_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise NO_LOCKS

    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"cannot lock .*folder"), exclusive(tmp_path / "folder"):
        pass
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"No locks available.*CONVEYOR_CACHE"), exclusive(tmp_path / "lock"):
        pass
