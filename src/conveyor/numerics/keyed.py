"""Random numbers as a pure function of a key, so that they do not depend on who draws them or in which order.

A key is a seed followed by integers, names or int64 tensors. Each part goes through the finaliser of splitmix64::

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;  z = (z ^ z >> 27) * 0x94d049bb133111eb;  z ^ z >> 31

with h0 = mix(seed + g), h(i+1) = mix(h(i) * 3 + mix(key(i) + g)), g = 2^64 / golden ratio. Draw number j of a key is
mix(h + (j + 1) g), which is splitmix64's own sequence started at h. The Python and the tensor path give the same bits.
"""

import hashlib
from typing import TypeAlias

import torch
from torch import Tensor

Key: TypeAlias = int | str | Tensor

WORD = (1 << 64) - 1
"""The 64 bits of a state or a draw."""
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The int64 with the bits of the low 64 bits of `value`."""
    value &= WORD
    return value - (1 << 64) if value >> 63 else value


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's own is arithmetic, so the copies of the sign bit are masked away."""
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix_int(value: int) -> int:
    value &= WORD
    value = ((value ^ (value >> 30)) * _FIRST) & WORD
    value = ((value ^ (value >> 27)) * _SECOND) & WORD
    return value ^ (value >> 31)


def _mix_tensor(value: Tensor) -> Tensor:
    value = (value ^ _shifted(value, 30)).mul_(_signed(_FIRST))
    value = value.bitwise_xor_(_shifted(value, 27)).mul_(_signed(_SECOND))
    return value.bitwise_xor_(_shifted(value, 31))


def name_key(name: str) -> int:
    """63 bits from a name; unlike `hash`, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def fold(seed: int, *keys: Key) -> int | Tensor:
    """The 64-bit state of a key: an unsigned int, or an int64 tensor (broadcast over the tensors among `keys`)."""
    state: int | Tensor = _mix_int(seed + _GOLDEN)
    for key in keys:
        if isinstance(key, str):
            key = name_key(key)
        if isinstance(key, Tensor):
            mixed = _mix_tensor(key.to(torch.int64) + _signed(_GOLDEN))
            scaled = _signed(state * 3) if isinstance(state, int) else state * 3
            state = _mix_tensor(mixed + scaled)
        elif isinstance(state, int):
            state = state_after(state, key)
        else:
            state = _mix_tensor(state * 3 + _signed(_mix_int(key + _GOLDEN)))
    return state


def bits(seed: int, *keys: Key, count: int) -> Tensor:
    """`count` random 64-bit words per key, where the keys are: int64 of shape [*broadcast shape of the keys, count]."""
    state = fold(seed, *keys)
    if isinstance(state, int):
        return draws(state, 0, count)
    return _mix_tensor(_steps(0, count, state.device) + state.unsqueeze(-1))


def draws(state: int, first: int, count: int, device: torch.device | str | None = None) -> Tensor:
    """The draws number `first`, `first` + 1, ... of the key whose state `fold` gave: int64 [count]."""
    return _mix_tensor(_steps(first, count, device).add_(_signed(state)))


def _steps(first: int, count: int, device: torch.device | str | None) -> Tensor:
    return torch.arange(first + 1, first + count + 1, dtype=torch.int64, device=device).mul_(_signed(_GOLDEN))


def uniform(seed: int, *keys: Key, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """`count` uniform numbers in [0, 1) per key, shape [*broadcast shape of the keys, count].

    24 bits fill a float32 and 53 a float64, so that 1 is never reached by rounding.
    """
    width = 53 if dtype == torch.float64 else 24
    words = _shifted(bits(seed, *keys, count=count), 64 - width)
    return words.to(dtype).mul_(2.0**-width)


def state_after(state: int, key: int) -> int:
    """The state of the key whose first parts gave `state` and whose last is `key`."""
    return _mix_int(state * 3 + _mix_int(key + _GOLDEN))


def uniform_number(state: int, number: int) -> float:
    """Draw `number` (from 0) of the key whose state `fold` gave: the number that `uniform` has there in float64."""
    return (_mix_int(state + (number + 1) * _GOLDEN) >> 11) * 2.0**-53


def state_of(seed: int, *keys: int | str) -> int:
    """`fold` of a key without tensors: an unsigned int of 64 bits."""
    state = fold(seed, *keys)
    assert isinstance(state, int)
    return state


def generator(seed: int, *keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh torch generator for the key; for many numbers at once, where `uniform` would need more memory passes.

    Trap: torch's CPU generator keeps 32 bits of its seed, so among many millions of keys two may share a stream.
    """
    made = torch.Generator(device=device)
    made.manual_seed(state_of(seed, *keys) >> 1)
    return made
