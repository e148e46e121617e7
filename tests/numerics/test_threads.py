import os
import subprocess
import sys

import pytest
import torch

from conveyor.errors import UserError
from conveyor.numerics.threads import check_environment, using_threads

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


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OMP_THREAD_LIMIT", "1"), ("OMP_DYNAMIC", "TRUE"), ("OMP_DYNAMIC", "true"), ("OMP_MAX_ACTIVE_LEVELS", "0")],
)
def test_fewer_threads_than_asked_for_are_refused(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With them a convolution's gradient waited for ever for a thread that was never started."""
    monkeypatch.setenv(variable, value)
    before = torch.get_num_threads()
    with pytest.raises(UserError, match=f"^{variable}={value} keeps OpenMP from starting 2 threads"), using_threads(2):
        pass
    assert torch.get_num_threads() == before
    with using_threads(1):
        pass


def test_other_settings_of_openmp_are_let_be() -> None:
    check_environment(
        2, {"OMP_THREAD_LIMIT": "2", "OMP_DYNAMIC": "false", "OMP_MAX_ACTIVE_LEVELS": "1", "OMP_NUM_THREADS": "1"}
    )
