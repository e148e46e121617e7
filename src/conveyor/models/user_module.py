"""A user's own models: registered from Python, or in files and modules that the user named.

`--model nets.py:small` and the variable CONVEYOR_MODELS (`nets.py,package.module`) name such code. A run folder names it
too, but there it is imported only if the user named it as well: opening a received folder executes no code.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from conveyor.errors import UserError

if TYPE_CHECKING:
    from torch import nn

Factory = Callable[..., "nn.Module"]
VARIABLE = "CONVEYOR_MODELS"

_registered: dict[str, Factory] = {}


def register(name: str) -> Callable[[Factory], Factory]:
    """Decorator: `build(name)` calls the function with num_classes, in_channels and the options given.

    A parameter called `norm` receives the norm options as a `NormChoice`.
    """

    def add(factory: Factory) -> Factory:
        _registered[name] = factory
        return factory

    return add


def registered() -> dict[str, Factory]:
    """The models that `register` added, here or in the code that CONVEYOR_MODELS names."""
    for source in _named():
        _load(source)
    return dict(_registered)


def admit(model: str | None) -> None:
    """Allow the import of the user's `model` if it is code (`nets.py:small`), here and in workers started here."""
    if model is None or ":" not in model:
        return
    source = _full(model.rpartition(":")[0])
    if source not in _named():
        os.environ[VARIABLE] = ",".join([*_named(), source])


def admit_options(given: dict[str, Any]) -> None:
    """Allow the import of all code that options name; data of the user's own get their full name, as a run stores it."""
    callbacks = given.get("callback") or ()
    for named in (
        *map(given.get, ("model", "data", "optimizer")),
        *([callbacks] if isinstance(callbacks, str) else callbacks),
    ):
        if isinstance(named, str):
            admit(named)
    if ":" in (given.get("data") or ""):
        given["data"] = full_name(given["data"])


def is_admitted(model: str) -> bool:
    """Whether the user named this code, so that it may be imported."""
    return _full(model.rpartition(":")[0]) in _named()


def imported(model: str, what: str = "model") -> Factory:
    """The function that `nets.py:small` or `package.module:small` names; `what` it should make."""
    found = attribute(model, what)
    if not callable(found):
        source, _, name = model.rpartition(":")
        raise UserError(f"there is no {name!r} in {source} that can be called and makes a {what}: give FILE.py:NAME")
    return found


def attribute(named: str, what: str) -> Any:
    """The object that `pets.py:photos` names, None if there is none; `what` it should be."""
    source, _, name = named.rpartition(":")
    if not is_admitted(named):
        raise UserError(
            f"the {what} {named} is code of somebody's own, which is not imported unasked: if you trust it, "
            f"set {VARIABLE}={source}"
        )
    return getattr(_load(_full(source)), name, None)


def full_name(named: str) -> str:
    """`pets.py:photos` with the full path of its file."""
    source, _, name = named.rpartition(":")
    return f"{_full(source)}:{name}"


def _named() -> list[str]:
    return [_full(word.strip()) for word in os.environ.get(VARIABLE, "").split(",") if word.strip()]


def _full(source: str) -> str:
    """Files by their full path, so that workers and commands in other folders find them; modules as they are."""
    return str(Path(source).resolve()) if source.endswith(".py") else source


def _load(source: str) -> ModuleType:
    """The module of a file or a dotted name, executed once."""
    if source.endswith(".py") and not Path(source).is_file():
        raise UserError(f"there is no file {source}: give the file that holds the code")
    try:
        if not source.endswith(".py"):
            return import_module(source)
        digest = hashlib.blake2b(source.encode(errors="surrogateescape"), digest_size=4).hexdigest()
        name = f"conveyor_own_{Path(source).stem}_{digest}"  # two files may have one stem
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
    except Exception as error:
        raise UserError(f"the code in {source} cannot be imported: {type(error).__name__}: {error}") from error
