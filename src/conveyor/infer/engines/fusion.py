"""A traced network as a list of layers: each a convolution with all that follows it in the same pass, or one operation."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import fx, nn
from torch.nn import functional as F

from conveyor.models.layers.conv import SameConv
from conveyor.models.layers.layers import GlobalMean
from conveyor.models.layers.stochastic import Stochastic

ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.SiLU: "silu",
    nn.ReLU6: "relu6",
    nn.Hardswish: "hardswish",
    nn.Sigmoid: "sigmoid",
    nn.Hardsigmoid: "hardsigmoid",
}
_FUNCTIONS: dict[Any, str] = {
    torch.relu: "relu",
    torch.relu_: "relu",
    F.relu: "relu",
    F.relu_: "relu",
    F.silu: "silu",
    F.relu6: "relu6",
    F.hardswish: "hardswish",
    torch.sigmoid: "sigmoid",
    F.hardsigmoid: "hardsigmoid",
}
MOST_CHANNELS = 2**16
"""As many zeros the compiled layer has for what lies beyond the border."""
_IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout2d, Stochastic)
_SUMS: tuple[Callable[..., Any], ...] = (operator.add, operator.iadd, torch.add)
_PRODUCTS: tuple[Callable[..., Any], ...] = (operator.mul, operator.imul, torch.mul)


@dataclass(slots=True)
class Layer:
    """One step: `result` = activation(operation(input times factors) + residual), all but the operation optional.

    `means`: the node that wants the mean of the result over its pixels, which comes for free.
    """

    node: fx.Node
    """The operation itself."""
    result: fx.Node
    module: nn.Module | None = None
    activation: str = "none"
    residual: fx.Node | None = None
    factors: fx.Node | None = None
    means: fx.Node | None = None
    inputs: list[fx.Node] = field(default_factory=list)
    taken: set[fx.Node] = field(default_factory=set)
    """The nodes that this layer computes."""

    @property
    def needs(self) -> list[fx.Node]:
        """The nodes that must have been computed before."""
        return [*self.inputs, *(node for node in (self.residual, self.factors) if node is not None)]


Shapes = dict[fx.Node, tuple[int, ...]]
"""Of every tensor, for one image."""


def layers_of(network: fx.GraphModule, shapes: Shapes) -> list[Layer]:
    """The layers of a network in evaluation mode without identities, in the order of execution."""
    modules = dict(network.named_modules())
    order = {node: number for number, node in enumerate(network.graph.nodes)}
    done: set[fx.Node] = set()
    layers: list[Layer] = []
    for node in network.graph.nodes:
        if node in done or node.op in ("placeholder", "output", "get_attr"):
            continue
        layer = Layer(node, node, modules.get(str(node.target)) if node.op == "call_module" else None)
        layer.inputs, layer.taken = list(node.all_input_nodes), {node}
        if is_convolution(layer.module) or is_dense(layer, shapes):
            _take_factors(layer, layers, shapes)
            _take_what_follows(layer, modules, order, shapes)
            _take_means(layer, modules)
        done |= layer.taken
        layers.append(layer)
    return layers


def is_convolution(module: nn.Module | None) -> TypeGuard[nn.Conv2d]:
    """A convolution that pads with zeros, with the same stride in both directions and not too many channels."""
    return (
        type(module) in (nn.Conv2d, SameConv)
        and isinstance(module, nn.Conv2d)
        and module.in_channels <= MOST_CHANNELS
        and module.padding_mode == "zeros"
        and isinstance(module.padding, tuple)
        and module.dilation == (1, 1)
        and module.stride[0] == module.stride[1]
    )


def is_dense(layer: Layer, shapes: Shapes) -> bool:
    """A dense layer on one list of numbers for each image."""
    return isinstance(layer.module, nn.Linear) and len(shapes[layer.node]) == 2


def is_depthwise(module: nn.Conv2d) -> bool:
    """Every channel has one square kernel of its own."""
    return (
        module.groups == module.in_channels == module.out_channels
        and module.groups > 1
        and module.kernel_size[0] == module.kernel_size[1]
    )


def is_mean(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    return node.op == "call_module" and isinstance(modules[str(node.target)], GlobalMean)


def drop_identities(network: fx.GraphModule) -> None:
    """Dropout and the like do nothing in evaluation mode."""
    modules = dict(network.named_modules())
    for node in list(network.graph.nodes):
        if node.op == "call_module" and isinstance(modules[str(node.target)], _IDENTITIES):
            node.replace_all_uses_with(node.args[0])
            network.graph.erase_node(node)


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _take_factors(layer: Layer, layers: list[Layer], shapes: Shapes) -> None:
    """x * gate before a 1x1 convolution, as squeeze-and-excitation has it: the factors go into the weights instead."""
    before = layers[-1] if layers else None
    conv = layer.module
    if (
        before is None
        or before.node is not layer.inputs[0]
        or before.node.target not in _PRODUCTS
        or _only_user(before.node) is not layer.node
        or len(before.inputs) != 2
        or not isinstance(conv, nn.Conv2d)
        or (conv.kernel_size, conv.stride, conv.groups) != ((1, 1), (1, 1), 1)
    ):
        return
    one_pixel = (1, conv.in_channels, 1, 1)
    gates = [each for each in before.inputs if shapes[each] == one_pixel]
    if len(gates) == 1:
        layer.factors, layer.inputs = gates[0], [each for each in before.inputs if each is not gates[0]]
        layers.pop()


def _take_what_follows(layer: Layer, modules: dict[str, nn.Module], order: dict[fx.Node, int], shapes: Shapes) -> None:
    """The sum with what is there already, and the activation."""
    user = _only_user(layer.result)
    if user is not None and user.op == "call_function" and user.target in _SUMS and len(user.all_input_nodes) == 2:
        other = next(each for each in user.all_input_nodes if each is not layer.result)
        is_there = order[other] < order[layer.node] and shapes[other] == shapes[layer.node]
        if is_there and not user.kwargs and not _is_depthwise_layer(layer):
            layer.residual, layer.result = other, user
            layer.taken.add(user)
            user = _only_user(user)
    activation = _activation(user, modules) if user is not None else None
    if user is not None and activation is not None:
        layer.activation, layer.result = activation, user
        layer.taken.add(user)


def _activation(node: fx.Node, modules: dict[str, nn.Module]) -> str | None:
    """The activation that a node is, if it is one."""
    if node.op == "call_module":
        return ACTIVATIONS.get(type(modules[str(node.target)]))
    return _FUNCTIONS.get(node.target) if node.op == "call_function" else None


def _is_depthwise_layer(layer: Layer) -> bool:
    return isinstance(layer.module, nn.Conv2d) and is_depthwise(layer.module)


def _take_means(layer: Layer, modules: dict[str, nn.Module]) -> None:
    if _is_depthwise_layer(layer):
        layer.means = next((user for user in layer.result.users if is_mean(user, modules)), None)
        layer.taken |= {layer.means} if layer.means is not None else set()
