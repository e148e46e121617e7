"""The optimiser: a rule applied to named parameters, with decay, exclusions, masters and stochastic rounding."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from conveyor.errors import UserError
from conveyor.numerics import foreach, keyed
from conveyor.numerics.precision import Precision
from conveyor.numerics.rounding import stochastic_round_into
from conveyor.optim.kinds import excluded
from conveyor.optim.lamb import Lamb
from conveyor.optim.lars import Lars
from conveyor.optim.muon import Muon, is_filter
from conveyor.optim.rules import Adam, Momentum, RmsProp, Rule, add_l2
from conveyor.options.optimizer import OptimizerOptions
from conveyor.options.units import rate_factor

if TYPE_CHECKING:
    from conveyor.options import Options

_CHUNK = 1 << 22
"""Elements that are widened to float32 at once when weights or state are kept in half precision."""


@dataclasses.dataclass
class _Group:
    """Parameters that share a rule and their decays; the lists run in parallel."""

    rule: Rule
    decay: float
    l2: float
    factor: float = 1.0
    """Of the rate. It does not scale the decays."""
    names: list[str] = dataclasses.field(default_factory=list)
    places: list[int] = dataclasses.field(default_factory=list)
    """Where the group's gradients stand among all gradients."""
    parameters: list[Tensor] = dataclasses.field(default_factory=list)
    weights: list[Tensor] = dataclasses.field(default_factory=list)
    """What is updated: the parameters themselves or their float32 masters."""
    state: dict[str, list[Tensor]] = dataclasses.field(default_factory=dict)
    has_masters: bool = False


class Optimizer:
    """Applies a rule to named parameters; all arithmetic is float32.

    A weight and its state share a number format. A parameter in half precision gets a float32 master when `master` is
    float32; otherwise (16.16) weight and state are widened, updated and rounded back, at random if `stochastic_seed`
    is given: keyed by (seed, update, name), so the result does not depend on the layout.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        groups: Mapping[str, tuple[Rule, float, float]],
        *,
        factors: Mapping[str, float] | None = None,
        master: torch.dtype = torch.float32,
        stochastic_seed: int | None = None,
        saturate: bool = False,
    ) -> None:
        """`groups` maps each name to its (rule, decoupled decay, L2), `factors` some to a factor of the rate."""
        self._seed = stochastic_seed
        self._saturate = saturate
        self.steps = 0
        """Updates made; a skipped update does not count."""
        self.names: list[str] = []
        """The order in which `step` expects gradients."""
        made: dict[tuple[Rule, float, float, float], _Group] = {}
        for name, parameter in named_parameters:
            key = (*groups[name], (factors or {}).get(name, 1.0))
            group = made.setdefault(key, _Group(*key))
            weight = parameter.detach()
            group.places.append(len(self.names))
            group.names.append(name)
            self.names.append(name)
            group.parameters.append(weight)
            group.weights.append(weight.to(master) if weight.dtype.itemsize < master.itemsize else weight)
        self._groups = list(made.values())
        for group in self._groups:
            group.has_masters = any(
                own is not weight for own, weight in zip(group.parameters, group.weights, strict=True)
            )
            for kind, start in group.rule.state.items():
                group.state[kind] = [torch.full_like(weight, start) for weight in group.weights]

    @torch.no_grad()
    def step(
        self, gradients: Sequence[Tensor], lr: float, update: int, *, gradient_factor: float | Tensor = 1.0
    ) -> None:
        """One update from the mean gradients, in the order of `names`. The gradients may be overwritten.

        `gradient_factor` multiplies them first (one over the loss scale, a clipping coefficient); in half precision
        this happens after widening, so that small gradients do not vanish.
        """
        self.steps += 1
        if len(gradients) != len(self.names):
            raise ValueError(f"{len(gradients)} gradients for {len(self.names)} parameters")
        for group in self._groups:
            ordered = [gradients[place] for place in group.places]
            if group.weights[0].dtype == torch.float32:
                self._step_wide(group, group.weights, ordered, group.state, lr, gradient_factor)
                if group.has_masters:
                    self._publish(group, update)
            else:
                for piece in _pieces(group.weights):
                    self._step_narrow(group, piece, ordered[piece], lr, gradient_factor, update)
            # PyTorch's fused rules and our kernels do not count as changes, but layers keep what they made of a weight.
            torch.autograd.graph.increment_version(group.parameters)

    def _step_wide(
        self,
        group: _Group,
        weights: list[Tensor],
        gradients: list[Tensor],
        state: Mapping[str, list[Tensor]],
        lr: float,
        factor: float | Tensor,
    ) -> None:
        """One update of float32 weights, all lists of one group."""
        gradients = [_laid_out_like(gradient, weight) for gradient, weight in zip(gradients, weights, strict=True)]
        if isinstance(factor, Tensor) or factor != 1.0:
            foreach.mul_(gradients, factor)
        # A decay per update that does not depend on the factor: lr factor (l2 / factor) w.
        l2 = group.l2 / group.factor
        if group.decay:
            # The L2 term takes the weight from before the decay: w - L (O(g + l2 w) + decay w).
            add_l2(weights, gradients, l2)
            l2 = 0.0
            foreach.mul_(weights, 1.0 - lr * group.decay)
        group.rule.update(weights, gradients, state, rate=lr * group.factor, l2=l2, step=self.steps)

    def _step_narrow(
        self, group: _Group, piece: slice, gradients: list[Tensor], lr: float, factor: float | Tensor, update: int
    ) -> None:
        """One update of weights and state kept in half precision: widen, update, round."""
        narrow = {"": group.weights[piece]} | {kind: group.state[kind][piece] for kind in group.state}
        wide = {kind: [value.float() for value in values] for kind, values in narrow.items()}
        self._step_wide(group, wide[""], [gradient.float() for gradient in gradients], wide, lr, factor)
        for kind, values in narrow.items():
            names = [f"{kind}/{name}" if kind else name for name in group.names[piece]]
            self._round(values, wide[kind], update, names)

    def _publish(self, group: _Group, update: int) -> None:
        """Copy float32 masters to parameters kept in half precision."""
        places = [place for place, own in enumerate(group.parameters) if own is not group.weights[place]]
        parameters, weights = ([values[place] for place in places] for values in (group.parameters, group.weights))
        self._round(parameters, weights, update, [group.names[place] for place in places])

    def _round(self, targets: list[Tensor], values: list[Tensor], update: int, names: list[str]) -> None:
        """Float32 values into tensors of half numbers."""
        if self._seed is not None:
            for target, value, name in zip(targets, values, names, strict=True):
                key = keyed.state_of(self._seed, update, name)
                stochastic_round_into(target, value, key=key, saturate=self._saturate)
            return
        if self._saturate:
            limit = torch.finfo(targets[0].dtype).max
            values = list(foreach.clamp_max(foreach.clamp_min(values, -limit), limit))
        foreach.copy_(targets, values)

    def state_dict(self) -> dict[str, Tensor]:
        """`kind/name` of every state tensor (not copied), masters as `master/name`, and `step`."""
        found = {"step": torch.tensor(self.steps)}
        for _, name, state in self._named_state():
            found[name] = state
        return found

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load state; names of other stages are ignored, a missing one is an error."""
        missing = [name for _, name, _ in self._named_state() if name not in state]
        if missing:
            raise UserError(
                f"the checkpoint has no optimizer state {missing[0]!r} ({len(missing)} missing): resume with the "
                "optimizer that wrote it, or start a new run from its weights"
            )
        for parameter, name, own in self._named_state():
            stored = state[name]
            if stored.shape != own.shape:
                raise UserError(
                    f"optimizer state {name!r} is {tuple(stored.shape)}, the model needs {tuple(own.shape)}"
                )
            own.copy_(stored)
            if name.startswith("master/"):
                parameter.copy_(own)
        self.steps = int(state["step"]) if "step" in state else 0

    @torch.no_grad()
    def load_masters(self, state: Mapping[str, Tensor]) -> None:
        """Load only the float32 masters of `state`: the rule's own state starts again."""
        for parameter, name, own in self._named_state():
            if name.startswith("master/") and name in state:
                own.copy_(state[name])
                parameter.copy_(own)

    def _named_state(self) -> Iterator[tuple[Tensor, str, Tensor]]:
        """(parameter, `kind/name`, tensor) of all state."""
        for group in self._groups:
            for position, (name, parameter) in enumerate(zip(group.names, group.parameters, strict=True)):
                if group.weights[position] is not parameter:
                    yield parameter, f"master/{name}", group.weights[position]
                for kind, values in group.state.items():
                    yield parameter, f"{kind}/{name}", values[position]


def make_optimizer(
    options: "Options",
    named_parameters: Iterable[tuple[str, Tensor]],
    *,
    global_batch: int = 1,
    layer_rates: Mapping[str, float] | None = None,
) -> Optimizer:
    """The optimiser the options ask for, at `global_batch` images per update; what needs no gradient is left out.

    `layer_rates` are further factors of the rate, by name.
    """
    chosen = options.optimizer
    parameters = [(name, value) for name, value in named_parameters if value.requires_grad]
    undecayed = excluded(parameters, chosen.decay_exclude)
    unadapted = excluded(parameters, chosen.lars_exclude)
    usual = Momentum() if ":" in chosen.optimizer else make_rule(chosen, global_batch)
    groups: dict[str, tuple[Rule, float, float]] = {}
    for name, value in parameters:
        decayed = name not in undecayed
        decay = chosen.weight_decay if decayed else 0.0
        l2 = chosen.l2_regularization if decayed else 0.0
        rule = usual
        if chosen.optimizer == "lars":
            adapted = name not in unadapted
            inner = decay if adapted else 0.0
            rule = Lars(chosen.momentum, chosen.lars_eta, _epsilon(chosen, 0.0), inner, adapted=adapted)
            decay = 0.0
        elif chosen.optimizer == "lamb":
            rule = Lamb(chosen.beta1, chosen.beta2, _epsilon(chosen, 1e-6), decay)
            decay = 0.0
        elif chosen.optimizer == "muon" and is_filter(value):
            rule = Muon(chosen.momentum, chosen.nesterov, chosen.muon_normalize)
        groups[name] = (rule, decay, l2)
    factors = _factors(parameters, options.schedule.lr_factors)
    factors |= {name: factors.get(name, 1.0) * rate for name, rate in (layer_rates or {}).items()}
    if ":" in chosen.optimizer:
        from conveyor.optim.foreign import ForeignOptimizer

        return ForeignOptimizer(chosen, parameters, groups, factors, Precision.from_options(options.precision).master)
    return Optimizer(
        parameters,
        groups,
        factors=factors,
        master=Precision.from_options(options.precision).master,
        stochastic_seed=options.run.seed if options.precision.stochastic_rounding != "off" else None,
        saturate=options.precision.saturate,
    )


def _factors(parameters: Sequence[tuple[str, Tensor]], pairs: Sequence[str]) -> dict[str, float]:
    """The factor of the rate of each parameter that a NAME:FACTOR pair means; a later pair wins."""
    factors: dict[str, float] = {}
    for pair in pairs:
        name, factor = rate_factor(pair)
        # A name may match nothing here: a stage of a pipeline holds only some of the parameters.
        factors |= dict.fromkeys(excluded(parameters, (name,)), factor)
    return factors


def make_rule(chosen: OptimizerOptions, global_batch: int = 1) -> Rule:
    """The rule of ordinary parameters; with lars and muon it is momentum."""
    if chosen.nesterov and chosen.optimizer not in ("momentum", "muon"):
        raise UserError(f"--nesterov is a form of momentum, not of {chosen.optimizer}: choose --optimizer momentum")
    match chosen.optimizer:
        case "sgd":
            return Momentum()
        case "rmsprop":
            epsilon = _epsilon(chosen, 0.001 if chosen.rmsprop_form == "tensorflow" else 1e-8)
            return RmsProp(chosen.decay_of_squares(global_batch), chosen.momentum, epsilon, chosen.rmsprop_form)
        case "adam" | "adamw":
            return Adam(chosen.beta1, chosen.beta2, _epsilon(chosen, 1e-8))
        case _:
            return Momentum(chosen.momentum, chosen.nesterov, chosen.momentum_form)


def _epsilon(chosen: OptimizerOptions, default: float) -> float:
    return default if chosen.optimizer_epsilon is None else chosen.optimizer_epsilon


def _laid_out_like(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient with the weight's strides: fused kernels run over memory and assume equal strides."""
    if gradient.stride() == weight.stride() and gradient.dtype == weight.dtype:
        return gradient
    return torch.empty_like(weight).copy_(gradient)


def _pieces(weights: Sequence[Tensor]) -> Iterator[slice]:
    """Slices of neighbouring tensors with about `_CHUNK` elements together."""
    start, elements = 0, 0
    for position, weight in enumerate(weights):
        elements += weight.numel()
        if elements >= _CHUNK:
            yield slice(start, position + 1)
            start, elements = position + 1, 0
    if start < len(weights):
        yield slice(start, len(weights))
