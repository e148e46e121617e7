"""Which passes of a compiled block are compiled, and what is refused; the bits are in tests/pipeline/test_compiled.py."""

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from conveyor.errors import UserError
from conveyor.numerics import context
from conveyor.options import Options
from conveyor.spec import resolve


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)  # type: ignore[no-any-return]


def test_training_passes_alone_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from conveyor.numerics import compiled

    calls: list[tuple[int, bool]] = []

    def compiler(forward: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def region(*inputs: Tensor) -> Any:
            calls.append(context._pinned)
            return forward(*inputs)

        return region

    monkeypatch.setattr(torch, "compile", compiler)
    model = Net()
    compiled.apply(model, ["block"], [])
    twin = copy.deepcopy(model)
    images = torch.ones(2, 3)
    with context.keyed(0, 0, (0, 1), norm_batches=2):
        model(images).sum().backward()
        with context.frozen_statistics():
            model(images)
    assert calls == [(2, False), (2, True)]
    with torch.no_grad():
        model(images)
    with context.layer_by_layer():
        model(images)
    model.to("meta")(torch.ones(2, 3, device="meta"))
    fx.symbolic_trace(model)
    assert len(calls) == 2
    twin(images).sum().backward()
    assert len(calls) == 3
    assert next(twin.parameters()).grad is not None, "a copy computes with its own weights"


def test_a_cut_inside_a_block_is_refused() -> None:
    from conveyor.run.preflight import check_start

    options = {
        "data": "digits",
        "model": "cifar_resnet8",
        "compile": True,
        "splits": ["layer2.0.conv2"],
        "layout": "1x2",
    }
    with pytest.raises(UserError, match=r"layer2\.0\.conv2 lies inside one"):
        check_start(resolve(Options.from_mapping(options)))


def test_layers_that_are_not_compiled_see_one_order_of_memory() -> None:
    """The compiler and a pipeline hand over gradients in orders of their own; random numbers go by the order of memory."""
    from conveyor.numerics import compiled

    seen: list[Tensor] = []

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            seen.extend(gradients)
            return gradients[0] * 2

    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    y = compiled._Opaque(Layer.apply)(x)
    y.backward(torch.ones(2, 3, 4, 5))
    assert len(seen) == 2
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in (*seen, y))
    assert not x.is_contiguous(memory_format=torch.channels_last)
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full_like(x, 2))


def test_without_a_compiler_it_is_refused_in_one_sentence(tmp_path: Path) -> None:
    environment = {**os.environ, "CXX": "/there/is/none", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    code = "import torch; from conveyor.numerics import compiled; compiled.check(torch.device('cpu'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("conveyor.errors.UserError: --compile needs a C++ compiler that works ("), done.stderr
    assert last.endswith("): install one, or leave --compile out")
