"""Freed memory is used again instead of being asked for anew."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from conveyor.numerics.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.set_num_threads(1)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.zeros(12 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_a_large_block_costs_no_page_faults_the_second_time() -> None:
    """Ten blocks of 48 MiB: nothing is faulted in when it is kept, and every page every time when it is not."""
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True).stdout)
        for how in ("keep", "return")
    )
    assert kept < 1_000
    assert returned > 10 * kept
