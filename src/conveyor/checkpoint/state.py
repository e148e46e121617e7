"""What a checkpoint holds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class State:
    """Everything that a run needs to continue as if it had never stopped.

    Tensors carry the full names of the whole model, whatever the layout was. Random numbers and the order of samples are
    pure functions of (seed, epoch, update, slot, sample), so the counts in `progress` are all that they need.
    """

    model: dict[str, Tensor]
    """Parameters and buffers, batch-norm statistics included."""
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    """`{"momentum/<parameter>": tensor, ...}` and float32 master weights."""
    averages: dict[str, Tensor] = field(default_factory=dict)
    """The running average of the weights, when there is one."""
    progress: dict[str, Any] = field(default_factory=dict)
    """Updates and times, the loss scale, best results, tallies since the last log point: plain JSON."""
    options: dict[str, Any] = field(default_factory=dict)
    """The resolved options, flat, as plain JSON."""

    @property
    def update(self) -> int:
        """Weight updates done."""
        return int(self.progress.get("update", 0))

    def best_weights(self) -> dict[str, Tensor]:
        """The weights to validate or to start from: the running average where there is one, in the model's types."""
        averaged = {
            name: self.averages[name].to(value.dtype) for name, value in self.model.items() if name in self.averages
        }
        return {**self.model, **averaged}

    def groups(self) -> dict[str, dict[str, Tensor]]:
        """The tensors by the file that holds them; an empty optional group has no file."""
        groups = {"model": self.model, "optimizer": self.optimizer, "averages": self.averages}
        return {name: tensors for name, tensors in groups.items() if tensors or name == "model"}


class Buffers:
    """Memory on the host into which tensors are copied before a background thread writes them.

    Kept from one checkpoint to the next: fresh pages for each one cost more than the copy itself.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Tensor] = {}

    def copy(self, state: State) -> State:
        """A deep copy of `state` on the host, contiguous, in buffers that the next call overwrites."""
        plain = {"progress": state.progress, "options": state.options}
        copies = {group: self._copy_group(group, tensors) for group, tensors in state.groups().items()}
        return State(**copies, **json.loads(json.dumps(plain)))

    def _copy_group(self, group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        copies = {}
        for name, tensor in tensors.items():
            kept = self._kept.get((group, name))
            if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
                kept = self._kept[group, name] = torch.empty(tensor.shape, dtype=tensor.dtype)
            kept.copy_(tensor.detach())
            copies[name] = kept
        return copies
