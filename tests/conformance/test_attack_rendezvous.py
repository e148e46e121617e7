"""The attack on a job's rendezvous once more, with its row in docs/reliability.md."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conformance import reliability

TESTS = Path(__file__).parents[1] / "launch" / "test_attack.py"


@pytest.mark.conformance
@pytest.mark.timeout(600)
def test_nobody_gets_in() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-rs", str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout, "network namespaces need root and iproute2"
    said = (
        "one machine: only loopback is listened at, a wrong secret and a stranger's bytes are refused at every socket; two "
        "network namespaces: no secret and a wrong one refused; nothing executed, the jobs went on"
    )
    reliability.write("rendezvous", said)
