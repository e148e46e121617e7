"""Private parts of torch: which module touches them, that they are there, and the versions that this was tried on."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from torch import nn
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.pipelining import schedules

import conveyor
from conveyor.numerics import foreach

HERE = Path(__file__).resolve().parent.parent
SOURCE = Path(conveyor.__file__).parent

TRIED = ("2.13.0",)
"""Versions with which all tests passed. Another one: run all tests with it, then add it here and to pyproject.toml."""

PRIVATE = {
    r"torch\._(foreach|fused)_": ["numerics/foreach.py"],
    r"_PipelineScheduleRuntime|_ComputationType|\b_Action\b|_prepare_schedule_with_comms": ["pipeline/schedules.py"],
    r"\._state_holder|handler\._store|\b_rendezvous\(|\b_monitor_workers|_remaining_restarts": ["launch/agent.py"],
    r"\b_NodeDesc|\b_RendezvousState": ["launch/rendezvous_state.py"],
    r"_conv_forward": ["models/layers/conv.py", "numerics/convolution.py", "numerics/precision.py"],
    r"nn\.modules\.\w+\._": ["infer/graph.py", "numerics/precision.py"],
    r"\blayer\._parameters": ["numerics/precision.py"],
    r"mkldnn\._": ["numerics/convolution.py"],
    r"torch\._inductor": ["bench/peers/inference.py"],
}
"""What is private, and the modules that may name it: one each but for what a layer's subclass is meant to replace."""


@pytest.mark.parametrize("pattern", PRIVATE)
def test_a_private_part_is_touched_in_its_module_alone(pattern: str) -> None:
    found = [path for path in sorted(SOURCE.rglob("*.py")) if re.search(pattern, path.read_text())]
    assert [str(path.relative_to(SOURCE)) for path in found] == PRIVATE[pattern]


def test_no_other_private_part_is_used() -> None:
    """Names with an underscore that are reached through `torch`, or imported from it."""
    known = "|".join(PRIVATE)
    reached = re.compile(r"\b(?:torch|nn)(?:\.\w+)*\._[a-z]\w*|from torch[\w.]* import [^\n]*\b_[a-zA-Z]\w*")
    for path in sorted(SOURCE.rglob("*.py")):
        for one in reached.findall(path.read_text()):
            assert re.search(known, one), f"{path.relative_to(SOURCE)} uses {one}: add it to PRIVATE with a test"


def test_the_private_parts_are_there() -> None:
    assert callable(schedules._PipelineScheduleRuntime._prepare_schedule_with_comms)
    kinds = schedules._ComputationType
    assert schedules._Action(1, kinds.FULL_BACKWARD, 2).computation_type is kinds.FULL_BACKWARD
    for name in ("_rendezvous", "_start_workers", "_monitor_workers"):
        assert callable(getattr(LocalElasticAgent, name))
    assert {"round", "complete", "participants", "wait_list"} <= set(vars(dynamic_rendezvous._RendezvousState()))
    handler = inspect.getsource(dynamic_rendezvous.DynamicRendezvousHandler.__init__)
    assert {"_store", "_state_holder"} <= set(re.findall(r"self\.(\w+) =", handler))
    assert dynamic_rendezvous._NodeDesc("host", 1, 0).addr == "host"
    assert callable(nn.Conv2d._conv_forward)
    product = torch.ops.mkldnn._linear_pointwise(torch.ones(1, 2), torch.ones(3, 2), None, "none", [], "")
    assert product.tolist() == [[2.0, 2.0, 2.0]]
    a, b = [torch.ones(2)], [torch.full((2,), 3.0)]
    foreach.add_(a, b, alpha=2.0)
    assert a[0].tolist() == [7.0, 7.0]


def test_what_is_installed_was_tried() -> None:
    assert torch.__version__.partition("+")[0] in TRIED


def test_the_package_admits_what_was_tried() -> None:
    document = tomllib.loads((HERE / "pyproject.toml").read_text())
    (range_of,) = [one for one in map(Requirement, document["project"]["dependencies"]) if one.name == "torch"]
    assert all(range_of.specifier.contains(version) for version in TRIED)
    assert not range_of.specifier.contains("2.99"), "private parts may change with every minor version"
    pinned = (HERE / "requirements" / "torch.txt").read_text().splitlines()
    assert [line for line in pinned if not line.startswith("#")] == [f"torch=={TRIED[-1]}"]
