"""TensorFlow's tensors on the wire, for the types an image or a logit can have."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.serve.errors import Refused
from conveyor.serve.protocols.arrays import checked_shape
from conveyor.serve.protocols.protos import MESSAGES

STRING = 7
MOST_REPEATED = 1 << 22
"""Elements that one repeated value may stand for: a message of a few bytes must not cost more memory than a large one."""
_NUMBERS = {
    1: (np.float32, "float_val"),
    2: (np.float64, "double_val"),
    3: (np.int32, "int_val"),
    4: (np.uint8, "int_val"),
    5: (np.int16, "int_val"),
    6: (np.int8, "int_val"),
    9: (np.int64, "int64_val"),
    17: (np.uint16, "int_val"),
    22: (np.uint32, "uint32_val"),
    23: (np.uint64, "uint64_val"),
}
_NUMBER_OF = {np.dtype(kind): number for number, (kind, _) in _NUMBERS.items()}


def to_proto(array: NDArray[Any]) -> Any:
    """A TensorProto with its numbers as raw bytes."""
    proto = MESSAGES["TensorProto"](dtype=_NUMBER_OF[array.dtype], tensor_content=np.ascontiguousarray(array).tobytes())
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def from_proto(proto: Any) -> NDArray[Any]:
    """The array; from raw bytes, or from a list of values of which the last is repeated, as TensorFlow does."""
    if proto.dtype not in _NUMBERS:
        raise Refused(
            f"tensors of TensorFlow's type {proto.dtype} are not accepted: send DT_UINT8 or another number type"
        )
    dtype, field = _NUMBERS[proto.dtype]
    shape = checked_shape([dim.size for dim in proto.tensor_shape.dim])
    count = math.prod(shape)
    if proto.tensor_content:
        if len(proto.tensor_content) != count * np.dtype(dtype).itemsize:
            raise Refused(f"the tensor has {len(proto.tensor_content)} bytes, but its shape is {shape}")
        return np.frombuffer(proto.tensor_content, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    values = getattr(proto, field)
    if len(values) == count:
        return np.array(values).reshape(shape)
    if len(values) == 1 and count <= MOST_REPEATED:
        return np.broadcast_to(np.array(values[0]), shape)
    raise Refused(f"the tensor has {len(values)} values, but its shape is {shape}")


def strings_of(proto: Any) -> list[bytes] | None:
    """The strings of a DT_STRING tensor; none for other types."""
    return list(proto.string_val) if proto.dtype == STRING else None
