"""What the forward pass of each unit keeps for the backward pass: counted exactly, on the meta device, without computing."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from conveyor.models.graph import trace_graph


def saved_bytes(model: nn.Module, image_size: int, in_channels: int = 3) -> dict[str, float]:
    """Bytes per image that autograd keeps, by unit (node name); `model` is on the meta device.

    A tensor that several units keep (an activation is the next convolution's input) counts once, for the first.
    Parameters do not count, nor what does not grow with the batch (a norm's statistics): the figures are the difference
    between two batch sizes.
    """
    model.train()
    small, large = 2, 4
    sizes = {}
    for batch in (small, large):
        recorder = _Recorder(model)
        with torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor):
            recorder.run(torch.empty(batch, in_channels, image_size, image_size, device="meta"))
        sizes[batch] = recorder.sizes
    return {name: (size - sizes[small].get(name, 0.0)) / (large - small) for name, size in sizes[large].items()}


class _Recorder(fx.Interpreter):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(fx.GraphModule(model, trace_graph(model)), garbage_collect_values=False)
        self.sizes: dict[str, float] = {}
        self._node = ""
        # Storages are identified by address, so none may be freed while we count.
        self._alive: list[Tensor] = list(model.parameters())
        self._seen = {_address(parameter) for parameter in model.parameters()}

    def run_node(self, n: fx.Node) -> Any:
        self._node = n.name
        return super().run_node(n)

    def pack(self, tensor: Tensor) -> Tensor:
        self._alive.append(tensor)
        if _address(tensor) not in self._seen:
            self._seen.add(_address(tensor))
            size = float(tensor.untyped_storage().nbytes())
            self.sizes[self._node] = self.sizes.get(self._node, 0.0) + size
        return tensor


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
