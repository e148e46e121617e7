"""Run the older programs' command lines to their end (`make conformance`; one of them: ARGS="-k tensorflow1-8")."""

import pytest
from tests.conformance import made_data, page
from tests.conformance.cases import cases
from tests.conformance.running import Result, copy_folders, run

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(2000)]
SMALL_SPEC = """
small_training:
  cmd: >-
    python3 train.py --model cifar_resnet8 --micro-batch-size 8 --gradient-accumulation 2 --synthetic-data host
    --updates 2 --max-validation-images 16
  data:
    throughput: {regexp: 'throughput: *(.*?) samples\\/sec'}
  output:
    - [samples/sec, throughput]
"""
CASES = {case.id: case for case in cases()}


@pytest.fixture(scope="session")
def results():
    """All results of this session."""
    found: dict[str, Result] = {}
    return found


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    root = tmp_path_factory.mktemp("conformance")
    (root / "data").mkdir()
    (root / "runs").mkdir()
    made_data.make_all(root / "data")
    copy_folders(root / "compat")
    (root / "compat" / "tensorflow2" / "small.yml").write_text(SMALL_SPEC)
    return root


def outcome(name, results, workspace):
    if name not in results:
        case = CASES[name]
        if case.needs:
            outcome(case.needs, results, workspace)
        results[name] = run(case, workspace)
        page.write([results[name]])
    return results[name]


def together(case):
    """Cases that use one run stay in one test process, and so do those that start several hosts at the same port."""
    if "--host" in case.command:
        return "hosts"
    return f"{case.folder}-{case.needs or case.id}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(together(case))) for name, case in CASES.items()]
)
def test_a_printed_command_runs_to_its_end(name, results, workspace):
    result = outcome(name, results, workspace)
    assert result.ok, f"{result.ran}\n{result.output[-3000:]}"
