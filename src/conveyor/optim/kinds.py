"""Which parameters a list such as `norm bias fc.` means."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("norm", "bias", "1d")


def excluded(named_parameters: Iterable[tuple[str, "Tensor"]], patterns: Sequence[str]) -> set[str]:
    """The names matched by `patterns`: kinds of parameters, or any part of a parameter's name.

    norm: the scale and the shift of a normalisation layer, known by a one-dimensional `weight`;
    bias: every parameter called `bias`, that of a normalisation layer included;
    1d:   every parameter with at most one dimension.
    """
    parameters = dict(named_parameters)
    norms = {name.removesuffix("weight") for name, value in parameters.items() if _is_scale(name, value)}
    found = set()
    for name, value in parameters.items():
        head, _, last = name.rpartition(".")
        owner = f"{head}." if head else ""
        kinds = {"norm": owner in norms, "bias": last == "bias", "1d": value.dim() <= 1}
        if any(kinds.get(pattern, pattern in name) for pattern in patterns):
            found.add(name)
    return found


def _is_scale(name: str, value: "Tensor") -> bool:
    return name.rpartition(".")[2] == "weight" and value.dim() == 1
