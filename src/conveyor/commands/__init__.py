"""The sub-commands of `conveyor`: one module each, found by its name, imported only when it is used."""

import importlib
import importlib.util
from types import ModuleType

NAMES = {
    "Train": ("train", "restore", "validate", "average", "sweep"),
    "Use": ("predict", "export", "serve", "request"),
    "Look": ("runs", "report", "compare", "options", "plan", "batch-find", "models", "configs", "devices"),
    "Tools": ("data", "launch", "bench"),
}
"""Sub-commands by the heading under which `conveyor --help` lists them."""


def available() -> dict[str, tuple[str, ...]]:
    """The sub-commands that are there, by heading."""
    present = {title: tuple(name for name in names if exists(name)) for title, names in NAMES.items()}
    return {title: names for title, names in present.items() if names}


def exists(name: str) -> bool:
    return importlib.util.find_spec(f"conveyor.commands.{name.replace('-', '_')}") is not None


def load(name: str) -> ModuleType:
    """The module of a sub-command: it has `HELP`, `add_arguments(parser)` and `run(arguments) -> int`."""
    return importlib.import_module(f"conveyor.commands.{name.replace('-', '_')}")
