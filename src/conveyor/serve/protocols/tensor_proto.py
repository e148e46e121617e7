"""TensorFlow's tensors on the wire, for the types an image or a logit can have."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.serve.errors import Refused
from conveyor.serve.protocols.arrays import DTYPES, checked_shape, from_bytes
from conveyor.serve.protocols.protos import MESSAGES

STRING = 7
MOST_REPEATED = 1 << 22
"""Elements that one repeated value may stand for: a message of a few bytes must not cost more memory than a large one."""
_NUMBERS = {
    1: ("FP32", "float_val"),
    2: ("FP64", "double_val"),
    3: ("INT32", "int_val"),
    4: ("UINT8", "int_val"),
    5: ("INT16", "int_val"),
    6: ("INT8", "int_val"),
    9: ("INT64", "int64_val"),
    17: ("UINT16", "int_val"),
    22: ("UINT32", "uint32_val"),
    23: ("UINT64", "uint64_val"),
}
"""TensorFlow's number of a type, its name in `arrays.DTYPES`, and the field of its values."""
_NUMBER_OF = {np.dtype(DTYPES[name]): number for number, (name, _) in _NUMBERS.items()}


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
    datatype, field = _NUMBERS[proto.dtype]
    shape = checked_shape([dim.size for dim in proto.tensor_shape.dim])
    if proto.tensor_content:
        return from_bytes(proto.tensor_content, datatype, shape)
    values, count = getattr(proto, field), math.prod(shape)
    if len(values) == count:
        return np.array(values).reshape(shape)
    if len(values) == 1 and count <= MOST_REPEATED:
        return np.broadcast_to(np.array(values[0]), shape)
    raise Refused(f"the tensor has {len(values)} values, but its shape is {shape}")


def strings_of(proto: Any) -> list[bytes] | None:
    """The strings of a DT_STRING tensor; none for other types."""
    return list(proto.string_val) if proto.dtype == STRING else None
