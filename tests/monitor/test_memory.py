"""Peak memory is that of this program alone."""

import os
import subprocess
import sys

import pytest

from conveyor.monitor import memory

CHILD = "from conveyor.monitor import memory; from conveyor.dialects import log_lines; print(memory.peak_resident(), log_lines.memory_percent())"
PARENT = """
import subprocess, sys
large = b"x" * (512 * 2**20)
sys.stdout.write(subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True, check=True).stdout)
"""


def test_a_small_program_started_by_a_large_one_reports_its_own_peak() -> None:
    words = [sys.executable, "-c", PARENT, CHILD]
    peak, percent = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert 2**20 < int(peak) < 400 * 2**20
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < float(percent) / 100 * total < 400 * 2**20


def test_the_peak_stays_when_memory_is_given_back() -> None:
    before = memory.peak_resident()
    large = b"x" * (before + 64 * 2**20)
    del large
    assert memory.peak_resident() > before + 32 * 2**20


def test_without_the_high_water_mark_the_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", lambda *words, **more: (_ for _ in ()).throw(OSError))
    assert memory.peak_resident() > 2**20
