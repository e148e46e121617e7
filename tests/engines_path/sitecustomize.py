"""With this folder on PYTHONPATH, the Python of `.venv` finds Ray and submitit of `$CONVEYOR_PEERS/engines` behind its own packages.

Any other Python that a test starts (a fresh environment, a peer's) stays as it is.
"""

import os
import sys
from pathlib import Path

_version = f"python{sys.version_info.major}.{sys.version_info.minor}"
if Path(sys.prefix).resolve() == (Path(__file__).parents[2] / ".venv").resolve():
    sys.path.append(str(Path(os.environ["CONVEYOR_PEERS"], "engines", "lib", _version, "site-packages").absolute()))
