"""Copies to a GPU on a stream of their own: they run while it computes what was queued before them."""

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device` without a wait of the host: to a GPU from page-locked memory, else the driver may wait for it."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class CopyStream:
    """`copy(tensor)`: the tensor on `device`; work that is queued after the call waits for it, the host does not.

    The host runs ahead of the device, so the copy of a micro-batch is queued while an earlier one is computed. The copy's
    memory belongs to this stream: unless it were recorded that the other one uses it, it could be given to the next copy
    while kernels still read it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, tensor: Tensor) -> Tensor:
        if self._stream is None or tensor.is_cuda:
            return sent(tensor, self._device)
        with torch.cuda.stream(self._stream):
            copy = sent(tensor, self._device)
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._stream)
        copy.record_stream(computing)
        return copy
