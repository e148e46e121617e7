"""Compiles the kernels when the package is built or installed, also in place; without a C compiler it goes on without."""

import importlib.util
import platform
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface):  # type: ignore[type-arg]
    """`src/conveyor/numerics/native/compile.py` knows what there is to compile."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the files of the wheel are gathered; `version` is "editable" for an installation in place."""
        if platform.system() != "Linux":
            return
        source = Path(self.root) / "src" / "conveyor" / "numerics" / "native" / "compile.py"
        spec = importlib.util.spec_from_file_location("kernels", source)
        assert spec is not None
        assert spec.loader is not None
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        for which, why in kernels.make_all().items():
            self.app.display_warning(
                f"kernels: {which} not compiled ({why}): PyTorch's own operations take their place"
            )
        if any(kernels.BUILT.glob("*/*.so")):
            build_data["pure_python"] = False
            # Nothing in the libraries knows Python: any version of it will do.
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"].append("*.so")
