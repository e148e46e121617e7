"""The sub-commands of `conveyor`: one module each, found by its name, imported only when it is used."""

import importlib
from types import ModuleType

NAMES = {
    "Train": ("train", "restore", "validate", "average", "sweep"),
    "Use": ("predict", "export", "serve", "request"),
    "Look": ("runs", "report", "compare", "options", "plan", "batch-find", "models", "configs", "devices"),
    "Tools": ("data", "launch", "bench"),
}
"""Sub-commands by the heading under which `conveyor --help` lists them."""


ALL = tuple(name for names in NAMES.values() for name in names)


def load(name: str) -> ModuleType:
    """The module of a sub-command: it has `HELP`, `add_arguments(parser)` and `run(arguments) -> int`."""
    return importlib.import_module(f"conveyor.commands.{name.replace('-', '_')}")
