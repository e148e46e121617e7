"""Reads the few things that CIFAR's pickled batches hold, without ever running a pickle.

A pickle is a program for a small stack machine that can call any function. This reader interprets only the operations
that build dictionaries, lists, tuples, texts, bytes and integers; calls exist only as three inert descriptions (an
array of bytes, its type, encoded bytes). Everything else is an error, so a hostile file can do nothing but be refused.
"""

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from conveyor.errors import UserError

_LARGEST_FILE = 1 << 29
_RECONSTRUCT, _ARRAY, _DTYPE, _ENCODE = (object() for _ in range(4))
_GLOBALS = {
    "numpy.core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy ndarray": _ARRAY,
    "numpy dtype": _DTYPE,
    "_codecs encode": _ENCODE,
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
_INTEGERS = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1"}
_BYTES = {"BINSTRING", "SHORT_BINSTRING", "STRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "UNICODE"}
_VALUES = _INTEGERS | _BYTES | _TEXTS


class _Array:
    """A numpy array of unsigned bytes before its state is known."""

    def __init__(self) -> None:
        self.value: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def build(self, state: Any) -> None:
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


class _Dtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def build(self, state: Any) -> None:
        """Byte order and the like: without meaning for single bytes."""


class _RefusedError(Exception):
    """The file does what a CIFAR batch never does."""


def read_pickled(path: Path) -> Any:
    """The dictionary in a pickled CIFAR file; keys and texts are `str` (latin-1) or `bytes` as the file has them."""
    if path.stat().st_size > _LARGEST_FILE:
        raise UserError(f"{path} is too large for a CIFAR batch")
    try:
        return _finished(_interpret(path.read_bytes()))
    except _RefusedError as refused:
        raise UserError(
            f"{path} is refused: it holds {refused}, which no CIFAR batch does; fetch the set again"
        ) from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a whole CIFAR batch ({error}); fetch the set again") from None


def _interpret(content: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    marks: list[int] = []

    def since_mark() -> list[Any]:
        position = marks.pop()
        items = stack[position:]
        del stack[position:]
        return items

    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[int(argument or 0)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(argument or 0)])
        elif name == "APPENDS":
            items = since_mark()
            _checked(stack[-1], list).extend(items)
        elif name == "APPEND":
            item = stack.pop()
            _checked(stack[-1], list).append(item)
        elif name == "LIST":
            stack.append(since_mark())
        elif name in ("SETITEMS", "DICT"):
            items = since_mark()
            if name == "DICT":
                stack.append({})
            _checked(stack[-1], dict).update(zip(map(_key, items[::2]), items[1::2], strict=True))
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _checked(stack[-1], dict)[_key(key)] = value
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            items = stack[-count:]
            del stack[-count:]
            stack.append(tuple(items))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            wanted = argument if name == "GLOBAL" else " ".join((stack.pop(-2), stack.pop()))
            if wanted not in _GLOBALS:
                raise _RefusedError(f"a reference to {wanted!r}")
            stack.append(_GLOBALS[wanted])
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_described(function, arguments))
        elif name == "BUILD":
            state = stack.pop()
            if not isinstance(stack[-1], _Array | _Dtype):
                raise _RefusedError("state for something that is no array")
            stack[-1].build(state)
        elif name == "STOP":
            break
        elif name not in ("PROTO", "FRAME"):
            raise _RefusedError(f"the operation {name}")
    return stack.pop()


def _described(function: Any, arguments: Any) -> Any:
    """What an allowed call stands for."""
    if function is _RECONSTRUCT and isinstance(arguments, tuple) and arguments[:1] == (_ARRAY,):
        return _Array()
    if function is _DTYPE and isinstance(arguments, tuple) and arguments and isinstance(arguments[0], str):
        return _Dtype(arguments[0])
    if function is _ENCODE and isinstance(arguments, tuple) and isinstance(arguments[0], str):
        return arguments[0].encode("latin-1")
    raise _RefusedError("a call")


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise _RefusedError(f"items for something that is no {kind.__name__}")
    return value


def _key(value: Any) -> str | bytes:
    if not isinstance(value, str | bytes):
        raise _RefusedError("a key that is no text")
    return value


def _finished(value: Any) -> Any:
    """Descriptions replaced by what they describe, at the top level and inside one dictionary."""
    if isinstance(value, dict):
        return {key: _finished(item) if isinstance(item, _Array) else item for key, item in value.items()}
    if isinstance(value, _Array):
        if value.value is None:
            raise _RefusedError("an array without data")
        return value.value
    return value
