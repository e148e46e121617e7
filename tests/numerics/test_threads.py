import os
import subprocess
import sys

import pytest

CODE = """
import os, torch
from conveyor.errors import UserError
from conveyor.numerics.threads import using_threads
x, w = torch.ones(8, 3, 64, 64), torch.ones(64, 3, 3, 3)
with using_threads(2):
    torch.nn.functional.conv2d(x, w)
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with using_threads(1):
    torch.nn.functional.conv2d(x, w)
code = 1
try:
    with using_threads(2):
        torch.nn.functional.conv2d(x, w)
except UserError as error:
    code = 0 if "forked" in str(error) and "spawn" in str(error) else 3
os._exit(code)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_of_a_process_that_computed_with_threads_is_refused_and_does_not_hang() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
