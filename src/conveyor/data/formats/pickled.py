"""Reads the few things that CIFAR's pickled batches hold, without running anything that a pickle asks for.

A pickle is a program for a small stack machine that can call any function. Here every allowed name is mapped
to an inert class of ours (an array of bytes, its type, encoded bytes), every other name is an error, and all opcodes
are checked before one is executed: a hostile file can only be refused.
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from conveyor.errors import UserError

_LARGEST_FILE = 1 << 29
_BROKEN = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, EOFError)
_ALLOWED = """
PROTO FRAME STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 INT LONG LONG1
BINSTRING SHORT_BINSTRING STRING BINBYTES SHORT_BINBYTES BINBYTES8 BINUNICODE SHORT_BINUNICODE UNICODE BINPUT
LONG_BINPUT PUT MEMOIZE BINGET LONG_BINGET GET APPENDS APPEND LIST SETITEMS DICT SETITEM TUPLE TUPLE1 TUPLE2 TUPLE3
GLOBAL STACK_GLOBAL REDUCE BUILD
"""
"""Opcodes that build plain values, and those that refer to names."""


class _RefusedError(Exception):
    """The file uses an operation that a CIFAR batch does not need."""


class _Dtype:
    """The type of an array; byte order and the like have no meaning for single bytes."""

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """A numpy array of unsigned bytes before its state is known."""

    value: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def __init__(self, kind: Any, *_: object) -> None:
        if kind is not _Array:
            raise _RefusedError("a call")

    def __setstate__(self, state: Any) -> None:
        match state:
            case (int(), tuple() as shape, _Dtype(name="u1" | "|u1"), bool() as fortran, str() | bytes() as data):
                raw = data.encode("latin-1") if isinstance(data, str) else data
                if not all(type(size) is int and size >= 0 for size in shape):
                    raise _RefusedError("an array of impossible shape")
                flat = np.frombuffer(raw, np.uint8)
                if flat.size != int(np.prod([int(size) for size in shape], dtype=object)):
                    raise _RefusedError("an array whose data does not fit its shape")
                self.value = flat.reshape(shape, order="F" if fortran else "C")
            case _:
                raise _RefusedError("an array of something else than bytes")


class _Encoded:
    """Bytes that were written as text. A class, so that a file cannot give it attributes, as it could a function."""

    def __new__(cls, text: str, *_: object) -> Any:
        return text.encode("latin-1")

    def __setstate__(self, state: Any) -> None:
        raise _RefusedError("state for something that is no array")


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encoded,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise _RefusedError(f"a reference to {f'{module} {name}'!r}")
        return _NAMES[module, name]


def read_pickled(path: Path) -> Any:
    """The dictionary in a pickled CIFAR file; keys and texts are `str` (latin-1) or `bytes` as the file has them."""
    if path.stat().st_size > _LARGEST_FILE:
        raise UserError(f"{path} is too large for a CIFAR batch")
    content = path.read_bytes()
    try:
        _check(content)
        return _finished(_Unpickler(io.BytesIO(content), fix_imports=False, encoding="latin-1").load())
    except _RefusedError as refused:
        raise UserError(
            f"{path} is refused: it holds {refused}, which no CIFAR batch does; fetch the set again"
        ) from None
    except (*_BROKEN, pickle.UnpicklingError) as error:
        raise UserError(f"{path} is not a whole CIFAR batch ({error}); fetch the set again") from None


def _check(content: bytes) -> None:
    """Refuse opcodes that do not build plain values, and memo indices beyond what a file needs."""
    allowed = _ALLOWED.split()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name not in allowed:
            raise _RefusedError(f"the operation {opcode.name}")
        # The standard unpickler allocates all memo entries below the highest index.
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise _RefusedError("a place in the memo that is out of order")


def _finished(value: Any) -> Any:
    """Descriptions replaced by what they describe, at the top level and inside one dictionary."""
    if isinstance(value, dict):
        if not all(isinstance(key, str | bytes) for key in value):
            raise _RefusedError("a key that is no text")
        return {key: _finished(item) if isinstance(item, _Array) else item for key, item in value.items()}
    if isinstance(value, _Array):
        if value.value is None:
            raise _RefusedError("an array without data")
        return value.value
    return value
