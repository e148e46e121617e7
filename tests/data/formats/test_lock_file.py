from pathlib import Path

import pytest

from conveyor.data.formats.lock_file import exclusive
from conveyor.errors import UserError


def test_a_lock_that_is_never_freed_gives_a_message(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock"), pytest.raises(UserError, match="held"):  # noqa: SIM117
        with exclusive(tmp_path / "lock", longest_wait=0.15):
            pass
