"""With this folder on PYTHONPATH, a process finds timm and torchvision of the environment `$CONVEYOR_PEERS/timm` behind its own.

torchvision registers forms of compiled operators that it lacks beside a CPU build of torch; classifiers use none of
them, so their absence is passed over while it is imported.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path
from typing import Any


def _register_what_is_there() -> None:
    import torch

    register = torch.library.register_fake

    def tolerant(operator: str, function: Any = None, **more: Any) -> Any:
        def add(one: Any) -> Any:
            try:
                return register(operator, one, **more)
            except RuntimeError:
                return one

        return add if function is None else add(function)

    torch.library.register_fake = tolerant


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _register_what_is_there()
        return None


_version = f"python{sys.version_info.major}.{sys.version_info.minor}"
sys.path.append(str(Path(os.environ["CONVEYOR_PEERS"], "timm", "lib", _version, "site-packages").absolute()))
sys.meta_path.insert(0, _BeforeTorchvision())
