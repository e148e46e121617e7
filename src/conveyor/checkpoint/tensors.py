"""Safetensors files: written straight from the tensors' memory, read only from bytes that were checked.

The format is 8 bytes with the length of a JSON header, the header (name -> type, shape, offsets), then the data. Writing
it here rather than through a library saves one copy of all weights and lets the checksum run over the same memory.
"""

import json
import struct
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def chunks(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[memoryview]:
    """The bytes of the file, piece by piece: tensors by name, values in their logical (row-major) order.

    A model that was gathered from the stages of a pipeline gives the same file as one in a single piece.
    """
    tensors = dict(sorted(tensors.items()))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(struct.pack("<Q", len(text)) + text)
    for tensor in tensors.values():
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            yield flat.view(torch.uint8).numpy().data


def parse(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises ValueError when it is not one."""
    import safetensors
    import safetensors.torch

    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as problem:
        raise ValueError(f"not a safetensors file ({str(problem)[:120]})") from None
