"""Which parameters a list such as `norm bias fc.` means."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from conveyor.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor, nn

KINDS = ("norm", "bias", "1d")


def excluded(named_parameters: Iterable[tuple[str, "Tensor"]], patterns: Sequence[str]) -> set[str]:
    """The names matched by `patterns`: kinds of parameters, any part of a parameter's name, or with ^ its beginning.

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
        if any(kinds.get(pattern, pattern in f"^{name}") for pattern in patterns):
            found.add(name)
    return found


def freeze(named_parameters: Iterable[tuple[str, "nn.Parameter"]], patterns: Sequence[str]) -> None:
    """Let only the parameters that `patterns` mean require gradients; without patterns nothing changes."""
    parameters = dict(named_parameters)
    for pattern in patterns:
        if not excluded(parameters.items(), (pattern,)):
            hint = did_you_mean(pattern.removeprefix("^"), parameters)
            raise UserError(f"--train-only {pattern} fits no parameter of the network{hint}: give part of a name")
    trained = excluded(parameters.items(), patterns) if patterns else parameters
    for name, parameter in parameters.items():
        if name not in trained:
            parameter.requires_grad_(False)


def layer_factors(names: Iterable[str], blocks: Sequence[str], head: str, decay: float) -> dict[str, float]:
    """decay^d for a parameter d layers below the head: 0 in the head, 1 in the last block, len(blocks) + 1 in the stem.

    `names` are in the order of the model. What stands between two blocks belongs to the one before it.
    """
    factors, reached = {}, 0
    for name in names:
        place = next((number for number, block in enumerate(blocks, 1) if name.startswith(f"{block}.")), None)
        reached = reached if place is None else place
        factors[name] = 1.0 if name.startswith(f"{head}.") else decay ** (len(blocks) + 1 - reached)
    return factors


def _is_scale(name: str, value: "Tensor") -> bool:
    return name.rpartition(".")[2] == "weight" and value.dim() == 1
