"""The pipeline runtime on real processes: gradients equal those of one process, whatever the schedule and placement."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conveyor.models.layers import stochastic
from conveyor.models.layers.norms import BatchNorm, discard
from conveyor.numerics.context import keyed
from conveyor.pipeline.assign import assign

MICRO_BATCH, CLASSES = 2, 5


class Skip(nn.Module):
    """Carries the shortcut of a block across a cut, beside the branch: two tensors cross."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.conv(x), x


class Join(nn.Module):
    """Begins in place, on what was received."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = BatchNorm(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, branch: Tensor, shortcut: Tensor) -> Tensor:
        return self.norm(self.relu(branch) + shortcut)


class Head(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dropout = stochastic.Dropout(0.5)
        self.dropout.label = "head"
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(x.mean((2, 3))))


def make_stages() -> list[nn.Module]:
    torch.manual_seed(1)
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), BatchNorm(8), nn.ReLU(inplace=True))
    stages: list[nn.Module] = [stem, Skip(8), Join(8), Head(8)]
    return [stage.to(memory_format=torch.channels_last).train() for stage in stages]  # type: ignore[call-overload]


def images(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(MICRO_BATCH, 3, 6, 6, generator=generator).contiguous(memory_format=torch.channels_last)


@contextlib.contextmanager
def key(number: int) -> Iterator[None]:
    with keyed(7, 0, number):
        yield


def loss_of(logits: Tensor, number: int, count: int) -> Tensor:
    labels = torch.arange(MICRO_BATCH) + number
    return nn.functional.cross_entropy(logits, labels % CLASSES) / count


def reference(count: int) -> dict[str, Tensor]:
    """All micro-batches in one process."""
    stages = make_stages()
    for number in range(count):
        with key(number):
            tensors: Any = (images(number),)
            for stage in stages:
                tensors = stage(*tensors)
                tensors = tensors if isinstance(tensors, tuple) else (tensors,)
            loss_of(tensors[0], number, count).backward()
    return collect(dict(enumerate(stages)))


def collect(stages: dict[int, nn.Module]) -> dict[str, Tensor]:
    found = {}
    for number, stage in stages.items():
        for name, parameter in stage.named_parameters():
            assert parameter.grad is not None
            found[f"{number}.{name}"] = parameter.grad.clone()
        for name, buffer in stage.named_buffers():
            found[f"{number}.{name}"] = buffer.clone()
    return found


def run_case(rank: int, schedule: str, depth: int, count: int, mapping: list[int], updates: int = 1) -> dict[str, Any]:
    import torch.distributed as dist

    from conveyor.pipeline.runtime import Pipeline

    stages = make_stages()
    parts = assign(len(stages), depth, schedule, mapping)
    calls: list[int] = []
    pipeline = Pipeline(
        stages,
        parts,
        worker=rank,
        depth=depth,
        schedule=schedule,
        group=dist.group.WORLD,
        device=torch.device("cpu"),
        on_last_backward=lambda: calls.append(1),
    )
    for update in range(updates):
        if update:
            for stage in stages:
                stage.zero_grad()
                discard(stage)
        pipeline.run(
            count,
            (MICRO_BATCH, 3, 6, 6),
            torch.float32,
            images,
            lambda logits, number: loss_of(logits, number, count),
            key,
        )
    own = {stage: stages[stage] for index in pipeline.mine for stage in parts[index].stages}
    return {"tensors": collect(own), "calls": len(calls)}


@pytest.mark.parametrize(
    ("schedule", "depth", "count", "mapping"),
    [
        ("gpipe", 2, 4, []),
        ("gpipe", 4, 3, []),
        ("1f1b", 4, 6, []),
        ("1f1b", 4, 2, []),
        ("sequential", 2, 3, []),
        ("interleaved-1f1b", 2, 5, []),
        ("looped-bfs", 2, 3, []),
        ("zero-bubble", 2, 4, []),
        ("gpipe", 2, 3, [0, 1, 1, 0]),
        ("gpipe", 3, 2, [0, 1, 2, 1]),
        ("1f1b", 2, 4, [0, 0, 0, 1]),
    ],
)
def test_gradients_equal_one_process(pool: Any, schedule: str, depth: int, count: int, mapping: list[int]) -> None:
    expected = reference(count)
    results = pool.run(run_case, depth, schedule=schedule, depth=depth, count=count, mapping=mapping, updates=2)
    found: dict[str, Tensor] = {}
    for result in results:
        assert not set(found) & set(result["tensors"])
        found |= result["tensors"]
        # The reducer is told exactly once per update; zero-bubble weight passes have no hooks to wait for.
        assert result["calls"] == (0 if schedule == "zero-bubble" else 2)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=1e-5, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )
    counts = [value for name, value in found.items() if name.endswith("pending_count")]
    assert [int(value) for value in counts] == [count, count]
