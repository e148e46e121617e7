"""Small runs for the training tests: real data, a real network, a second or less."""

from pathlib import Path
from typing import Any

import torch

from conveyor.checkpoint import folder as one
from conveyor.checkpoint import store
from conveyor.checkpoint.state import State
from conveyor.options import Options
from conveyor.run import worker
from conveyor.run.finish import Result
from conveyor.spec import RunSpec, resolve


def small_options(run: Path | None = None, **changes: Any) -> Options:
    """ResNet-8 on a few digits in one thread."""
    base: dict[str, Any] = {
        "model": "resnet8", "micro_batch_size": 8, "updates": 8, "updates_per_epoch": 4, "max_validation_images": 30,
        "learning_rate": 0.05, "layout": "1x1", "threads": 1, "quiet": True, "tensorboard": False, "report": False,
    }  # fmt: skip
    if run is not None:
        base["run_dir"] = str(run)
    return Options().replace(**{**base, **changes})


def small_spec(run: Path | None = None, **changes: Any) -> RunSpec:
    return resolve(small_options(run, **changes))


def train(run: Path, **changes: Any) -> Result:
    """Run it here and now."""
    return worker.run(small_spec(run, **changes))


def checkpoint(run: Path, update: int) -> State:
    return one.load(run / store.CHECKPOINTS / str(update))


def assert_same_bits(expected: State, found: State) -> None:
    """The tensors of two checkpoints are equal to the bit."""
    for group, tensors in expected.groups().items():
        others = found.groups()[group]
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, others[name]), f"{group} {name} differs"


def names(run: Path) -> list[str]:
    return [path.name for path in store.listing(run)]
