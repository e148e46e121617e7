"""The secret that the processes of a job share: given by the launcher, or kept in a file of the user. No torch here.

| where | given by |
|---|---|
| CONVEYOR_SECRET | our launcher to its workers, the SLURM script, the Kubernetes secret |
| CONVEYOR_SECRET_FILE, `--secret-file` | the user: the same file on every machine |
| conveyor/secret in the user's configuration folder | made at first use; shared homes share it |

An environment can be read by its user and root only; a command line by everyone, so a secret is never put there.
"""

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from conveyor.errors import UserError
from conveyor.files import user_path

VARIABLE, FILE_VARIABLE = "CONVEYOR_SECRET", "CONVEYOR_SECRET_FILE"
MIN_BYTES = 16


def new() -> str:
    """A fresh secret."""
    return secrets.token_hex(32)


def load(environment: Mapping[str, str], file: str | None = None) -> bytes:
    """The secret of this process's job; the user's own is made when there is none."""
    text = environment.get(VARIABLE, "")
    given = file or environment.get(FILE_VARIABLE, "")
    where = VARIABLE
    if file or not text:
        path = user_path(given) if given else _own_file(environment)
        text, where = _read(path), str(path)
    if len(text) < MIN_BYTES:
        raise UserError(
            f"the secret in {where} is shorter than {MIN_BYTES} characters: `openssl rand -hex 32` makes one."
        )
    return text.encode()


def _read(path: Path) -> str:
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserError(f"other users may read the secret {path}: run chmod 600 {path} and choose a new secret.")
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not a text"
        raise UserError(f"the secret {path} cannot be read: {reason}.") from error


def _own_file(environment: Mapping[str, str]) -> Path:
    """The user's own secret, made when it is missing; in the private folder when there is no home to write to."""
    home = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "conveyor"
    try:
        home.mkdir(parents=True, exist_ok=True)
        return _made(home / "secret")
    except OSError:
        return _made(private_folder() / "secret")


def _made(path: Path) -> Path:
    """Create the file complete or not at all, one for all processes that try at once: a link never replaces a file."""
    if not path.exists():
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(new() + "\n")
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
        finally:
            Path(name).unlink()
    return path


def private_folder() -> Path:
    """A folder for this user's sockets, which no other user can enter."""
    folder = Path(tempfile.gettempdir()) / f"conveyor-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UserError(
            f"{folder} is not a folder that belongs to you alone: remove it, or set TMPDIR to a folder of your own."
        )
    return folder
