"""Freed memory is used again instead of being asked for anew."""

import platform
import subprocess
import sys
from pathlib import Path

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


LARGE = """
import torch
from conveyor.numerics.allocator import keep_freed_memory

keep_freed_memory()
kept = [torch.ones(12 * 2**20) for _ in range(4)]
print(*[line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")])
"""
PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not PAGES.exists() or "[never]" in PAGES.read_text(), reason="the system has no large pages")
def test_the_heap_lies_in_large_pages() -> None:
    """192 MiB of tensors: most of them, whatever the system could find."""
    program = [sys.executable, "-c", LARGE]
    found = int(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    assert found > 96 * 2**10
