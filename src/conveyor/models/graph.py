"""The traced form of a network: a flat list of layer calls and tensor operations, free of mutation."""

import operator
from collections.abc import Callable
from typing import Any

from torch import fx, nn
from torch.nn import functional as F

from conveyor.errors import UserError, first_line
from conveyor.models.layers.proxy_norm import ProxyNormActivation
from conveyor.models.layers.stochastic import Stochastic

_OUT_OF_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
# Layers and methods that may return their input itself, or a view of it.
_MAY_ALIAS = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.Unflatten, Stochastic)
_VIEWS = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "contiguous"}


class _Tracer(fx.Tracer):
    """Traces into containers only: torch's own layers, childless modules and proxy-normed activations stay whole.

    A module may also say `is_unit = True` to stay whole.
    """

    def is_leaf_module(self, module: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(module, nn.Sequential):
            return False
        whole = getattr(module, "is_unit", False) or isinstance(module, ProxyNormActivation)
        childless = next(module.children(), None) is None
        return bool(whole or childless or super().is_leaf_module(module, module_qualified_name))


def trace_graph(model: nn.Module) -> fx.Graph:
    """The graph of `model` in the order of execution; no tensor of it is used again after being overwritten.

    An in-place operation stays one, but everything later refers to its result instead of its (same) argument, so
    that doing it out of place instead changes nothing but memory.
    """
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # whatever the model's own code raises when it is given no tensor
        raise UserError(
            f"the layers of {type(model).__name__} cannot be followed one by one ({first_line(error)}), so it cannot be cut into stages: "
            "use --stages 1 and a --layout of depth 1"
        ) from error
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if mutated := mutates(node, model):
            for user in [user for user in mutated.users if order[user] > order[node]]:
                user.replace_input_with(mutated, node)
    return graph


def is_number(node: fx.Node) -> bool:
    """Whether the node gives a shape, a type or arithmetic on such, and no tensor: computed where needed."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in ("shape", "dtype", "device", "ndim")
    inner = node.all_input_nodes
    return getattr(node.target, "__module__", "") == "_operator" and bool(inner) and all(map(is_number, inner))


def tensor_nodes(graph: fx.Graph) -> list[fx.Node]:
    """The layer calls and tensor operations, in order: the units of the model."""
    calls = (node for node in graph.nodes if node.op in ("call_module", "call_function", "call_method"))
    return [node for node in calls if not is_number(node)]


def final_users(node: fx.Node) -> list[fx.Node]:
    """The nodes that need this one's tensor, also through shapes and numbers derived from it."""
    found: list[fx.Node] = []
    for user in node.users:
        found += final_users(user) if is_number(user) else [user]
    return found


def mutates(node: fx.Node, model: nn.Module) -> fx.Node | None:
    """The node whose tensor this node overwrites, if it does."""
    in_place = False
    if node.op == "call_module":
        in_place = bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    elif node.op == "call_method":
        in_place = str(node.target).endswith("_") and not str(node.target).endswith("__")
    elif node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        in_place = node.target in _OUT_OF_PLACE or bool(node.kwargs.get("inplace")) or name.endswith("_")
    first = node.args[0] if in_place and node.args else None
    return first if isinstance(first, fx.Node) else None


def source(node: fx.Node, model: nn.Module) -> fx.Node:
    """The node whose memory `node` may share: itself, or what a chain of views and identities leads back to."""
    while node.args and isinstance(node.args[0], fx.Node):
        aliases = mutates(node, model) is not None
        if node.op == "call_module":
            aliases = aliases or isinstance(model.get_submodule(str(node.target)), _MAY_ALIAS)
        elif node.op == "call_method":
            aliases = aliases or str(node.target) in _VIEWS
        elif node.op == "call_function":
            aliases = aliases or getattr(node.target, "__name__", "") in _VIEWS | {"getitem", "getattr"}
        if not aliases:
            break
        node = node.args[0]
    return node


def out_of_place(target: Callable[..., Any], kwargs: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that gives the same result in new memory, and its keyword arguments."""
    if target in _OUT_OF_PLACE:
        return _OUT_OF_PLACE[target], kwargs
    name = getattr(target, "__name__", "")
    if name.endswith("_") and hasattr(F, name[:-1]):
        return getattr(F, name[:-1]), kwargs
    return target, {key: value for key, value in kwargs.items() if key != "inplace"}
