"""Any optimiser class with the interface of `torch.optim.Optimizer`, around its own arithmetic and state.

Each group of parameters has an instance of its own. The rate comes from our schedule, the gradients are the sum of the
tree, state goes into checkpoints. The same bits on every layout follow if the class treats each parameter by itself and
draws nothing at random; this cannot be checked here, so the run prints it as a condition.
"""

import inspect
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.models.user_module import imported
from conveyor.optim.optimizer import Optimizer, _Group
from conveyor.optim.rules import Rule
from conveyor.options.optimizer import OptimizerOptions
from conveyor.options.units import named_number

NUMBER = "#"
"""Ends the kind of a state that the class keeps as a plain number, not as a tensor."""


OF_RULES = {
    "momentum": "momentum", "nesterov": "nesterov", "beta1": "betas", "beta2": "betas", "optimizer_epsilon": "eps",
    "momentum_form": "", "rmsprop_decay": "", "rmsprop_decay_per_sample": "", "rmsprop_form": "", "lars_eta": "",
    "muon_normalize": "",
}  # fmt: skip
"""Options of our rules, and the arguments of a class that mean the same."""


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The class that MODULE:CLASS names; torch's own need no permission to be imported."""
    module, _, attribute = name.rpartition(":")
    found = getattr(torch.optim, attribute, None) if module == "torch.optim" else imported(name, "optimizer")
    if not (isinstance(found, type) and hasattr(found, "step")):
        raise UserError(f"--optimizer {name}: there is no class of that name with a step(), as in torch.optim")
    return found


def _arguments(chosen: OptimizerOptions, takes: Collection[str]) -> dict[str, Any]:
    """The arguments of the class: `--optimizer-arguments`, and our options of the same meaning where it has them.

    Momentum and Nesterov's form are always ours; betas and epsilon are the class's own unless they were changed.
    """
    typed: dict[str, Any] = dict(named_number(pair) for pair in chosen.optimizer_arguments)
    given, usual = {}, OptimizerOptions()
    changed = {name for name in OF_RULES if getattr(chosen, name) != getattr(usual, name)}
    for name, argument in OF_RULES.items():
        if name in changed and (argument not in takes or argument in typed):
            why = f"already has {argument}" if argument in typed else "has no such argument"
            raise UserError(f"--{name.replace('_', '-')}: {chosen.optimizer} {why}; see --optimizer-arguments")
        if argument in takes and (argument == name or name in changed):
            given[argument] = (chosen.beta1, chosen.beta2) if argument == "betas" else getattr(chosen, name)
    return given | typed


class ForeignOptimizer(Optimizer):
    """Steps of a foreign class on float32 weights or masters."""

    def __init__(
        self,
        chosen: OptimizerOptions,
        parameters: Sequence[tuple[str, Tensor]],
        groups: Mapping[str, tuple[Rule, float, float]],
        factors: Mapping[str, float],
        master: torch.dtype,
    ) -> None:
        if master != torch.float32:
            raise UserError(f"--optimizer {chosen.optimizer} needs float32 weights: choose --precision 32.32 or 16.32")
        super().__init__(parameters, groups, factors=factors)
        made = optimizer_class(chosen.optimizer)
        takes = inspect.signature(made).parameters
        given = _arguments(chosen, takes)
        self._theirs: dict[int, tuple[torch.optim.Optimizer, list[nn.Parameter]]] = {}
        for group in self._groups:
            own = [nn.Parameter(weight, requires_grad=True) for weight in group.weights]  # shares the memory
            arguments: dict[str, Any] = {"lr": 1.0, **given}
            if "weight_decay" in takes:
                # Its own form of the decay; otherwise ours, decoupled.
                arguments.setdefault("weight_decay", group.decay)
                group.decay = 0.0
            if "foreach" in takes:
                arguments.setdefault("foreach", False)  # one parameter after the other, whatever stands beside it
            try:
                self._theirs[id(group)] = made(own, **arguments), own
            except (TypeError, ValueError) as error:
                raise UserError(f"--optimizer {chosen.optimizer}: {error}; see --optimizer-arguments") from None
        self._name = chosen.optimizer

    def _step_wide(
        self,
        group: _Group,
        weights: list[Tensor],
        gradients: list[Tensor],
        state: Mapping[str, list[Tensor]],
        lr: float,
        factor: float | Tensor,
    ) -> None:
        theirs, own = self._theirs[id(group)]
        l2 = group.l2 / group.factor
        for parameter, weight, gradient in zip(own, weights, gradients, strict=True):
            scaled = torch.empty_like(weight).copy_(gradient).mul_(factor)
            parameter.grad = scaled.add_(weight, alpha=l2) if l2 else scaled
            if group.decay:
                weight.mul_(1.0 - lr * group.decay)
        for entry in theirs.param_groups:
            entry["lr"] = lr * group.factor
        try:
            theirs.step()
        except TypeError as error:
            raise UserError(
                f"--optimizer {self._name} cannot step without a closure ({error}): choose another"
            ) from None
        theirs.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Tensor]:
        """As `Optimizer.state_dict`; a plain number's kind ends in `NUMBER`."""
        found = super().state_dict()
        for group in self._groups:
            theirs, own = self._theirs[id(group)]
            for name, parameter in zip(group.names, own, strict=True):
                for kind, value in theirs.state.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        found[f"{kind}/{name}"] = value
                    elif isinstance(value, (int, float)):
                        found[f"{kind}{NUMBER}/{name}"] = torch.tensor(value, dtype=torch.float64)
                    elif value is not None:
                        raise UserError(f"--optimizer {self._name} keeps {kind!r}, which no checkpoint can hold")
        return found

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load state; names of other stages are ignored."""
        super().load_state_dict(state)
        kinds: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, value in state.items():
            kind, _, name = key.rpartition("/")
            kinds[name][kind] = value
        for group in self._groups:
            theirs, own = self._theirs[id(group)]
            for name, parameter in zip(group.names, own, strict=True):
                stored: dict[str, Any] = {}
                for kind, value in kinds[name].items():
                    if kind.endswith(NUMBER):
                        number = value.item()
                        stored[kind.removesuffix(NUMBER)] = int(number) if float(number).is_integer() else number
                    elif kind != "master":
                        like = value.dim() == parameter.dim() and value.dtype == parameter.dtype
                        stored[kind] = (
                            torch.empty_like(parameter).copy_(value) if like and value.dim() else value.clone()
                        )
                if stored:
                    theirs.state[parameter] = stored
