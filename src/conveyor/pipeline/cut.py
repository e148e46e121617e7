"""Cut a model into stages before any of its units; every tensor that is still needed crosses.

The stages hold the model's own layers: same parameters, same names, same random numbers and statistics.
"""

import copy
import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, fx, nn

from conveyor.errors import UserError
from conveyor.models.graph import final_users, is_number, mutates, out_of_place, source, tensor_nodes, trace_graph
from conveyor.models.layers.norms import FUSED_ACTIVATIONS, BatchNorm


class Stage(nn.Module):
    """A run of consecutive units: takes and returns tuples of live tensors, in the order of their making.

    The layers' attribute names are those of the whole model, so `named_parameters` and `state_dict` give full names. A
    tensor that only later stages need is passed through. The last stage returns a tuple of the model's output alone.
    """

    def __init__(self, module: fx.GraphModule, number: int, units: range) -> None:
        super().__init__()
        for name, child in module.named_children():
            self.add_module(name, child)
        for name, parameter in module.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in module.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self.stage_number, self.stage_units = number, units
        self._code: Callable[..., tuple[Tensor, ...]] = type(module).forward

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._code(self, *tensors)

    def extra_repr(self) -> str:
        return f"stage {self.stage_number}: units {self.stage_units.start} to {self.stage_units.stop - 1}"


def cut(model: nn.Module, points: Sequence[int]) -> list[Stage]:
    """Stages of `model`, cut before each of the units `points` (as `models.splits.resolve` gives them).

    stage n's outputs are stage n + 1's inputs; composed they equal the model bit for bit, forward and backward. An
    operation that overwrites its input in the model does so in a stage only where the stage itself made that tensor:
    what was received may be another worker's buffer, or still needed by the stage before for its backward pass.
    """
    graph = trace_graph(model)
    nodes = tensor_nodes(graph)
    bounds = [0, *points, len(nodes)]
    if any(low >= high for low, high in pairwise(bounds)):
        raise UserError(
            f"cannot cut at {list(points)}: split points must rise, and lie between 1 and {len(nodes) - 1} here."
        )
    position = {node: index for index, node in enumerate(nodes)}
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output")
    results = _results(output)
    made = {**dict.fromkeys(inputs, -1), **position}
    needed = {node: max((position.get(user, len(nodes)) for user in final_users(node)), default=-1) for node in made}

    def live(point: int) -> list[fx.Node]:
        """What is made before unit `point` and used at or after it."""
        return [node for node, index in made.items() if index < point <= needed[node]]

    stages = []
    for index, (low, high) in enumerate(pairwise(bounds)):
        received = inputs if index == 0 else live(low)
        sent = results if high == len(nodes) else live(high)
        stages.append(_stage(model, index, range(low, high), nodes[low:high], received, sent))
    _keep_state(model, stages)
    return stages


def shared_parameters(stages: Sequence[nn.Module]) -> list[str]:
    """Names of parameters that several stages use, whose gradients are the sum over these stages.

    Inside one process the sum happens by itself, since the stages hold the same tensor.
    """
    seen: dict[int, int] = {}
    shared = []
    for index, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            if seen.setdefault(id(parameter), index) != index:
                shared.append(name)
    return list(dict.fromkeys(shared))


def _keep_state(model: nn.Module, stages: Sequence[Stage]) -> None:
    """The stages have the model's state: the first one holds what no unit uses, and no buffer is saved that the model does not save."""
    state, held = model.state_dict(), set[str]()
    for stage in stages:
        for path in stage.state_dict():
            held.add(path)
            if path not in state:
                owner, _, name = path.rpartition(".")
                stage.get_submodule(owner).register_buffer(name, stage.get_buffer(path), persistent=False)
    for path in [path for path in state if path not in held]:
        *containers, name = path.split(".")
        place: nn.Module = stages[0]
        for part in containers:
            if part not in dict(place.named_children()):
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        tensor = operator.attrgetter(path)(model)
        if isinstance(tensor, nn.Parameter):
            place.register_parameter(name, tensor)
        else:
            place.register_buffer(name, tensor)


def _results(output: fx.Node) -> list[fx.Node]:
    value = output.args[0]
    if isinstance(value, fx.Node):
        return [value]
    if isinstance(value, tuple | list) and all(isinstance(one, fx.Node) for one in value):
        return [one for one in value if isinstance(one, fx.Node)]
    raise UserError("a model to be cut must return one tensor or a tuple of tensors.")


def _stage(
    model: nn.Module,
    index: int,
    units: range,
    nodes: Sequence[fx.Node],
    received: Sequence[fx.Node],
    sent: Sequence[fx.Node],
) -> Stage:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: graph.placeholder(node.name) for node in received}

    def copied(node: fx.Node) -> fx.Node:
        """The copy of a node; attributes and numbers are copied into each stage that needs them."""
        if node not in copies:
            for argument in node.all_input_nodes:
                if argument.op == "get_attr" or is_number(argument):
                    copied(argument)
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
        return copies[node]

    for node in nodes:
        copied(node)
    graph.output(tuple(copies[node] for node in sent))
    replaced = _keep_received(model, graph)
    _fuse_norms(model, graph)
    parts: dict[str, Any] = {
        str(node.target): operator.attrgetter(str(node.target))(model)
        for node in graph.nodes
        if node.op in ("call_module", "get_attr")
    }
    module = fx.GraphModule({**parts, **replaced}, graph)
    return Stage(module, index, units)


def _fuse_norms(model: nn.Module, graph: fx.Graph) -> None:
    """Batch norms that may run in one operation with what follows do so where a stage has both: norm, sum, activation."""
    for act in list(graph.nodes):
        kind = FUSED_ACTIVATIONS.get(type(model.get_submodule(str(act.target)))) if act.op == "call_module" else None
        if kind is None:
            continue
        norm: fx.Node = act.prev
        between: fx.Node | None = None
        residual: Any = None
        if (
            norm.op == "call_function"
            and norm.target in (operator.iadd, operator.add)
            and len(norm.all_input_nodes) == 2
        ):
            between, norm = norm, norm.prev
            residual = between.args[1]
        layer = model.get_submodule(str(norm.target)) if norm.op == "call_module" else None
        # The results in between must have no other user.
        chain = [norm, *([between] if between is not None else []), act]
        linked = all(list(one.users) == [other] and other.args[0] is one for one, other in pairwise(chain))
        if not (type(layer) is BatchNorm and layer.fused and linked and len(norm.args) == 1):
            continue
        with graph.inserting_before(act):
            joined = graph.call_module(str(norm.target), (norm.args[0], residual, kind))
        act.replace_all_uses_with(joined)
        for node in reversed(chain):
            graph.erase_node(node)


def _keep_received(model: nn.Module, graph: fx.Graph) -> dict[str, nn.Module]:
    """Make the operations that would overwrite a received tensor write to new memory; returns the changed layers."""
    replaced: dict[str, nn.Module] = {}
    for node in graph.nodes:
        mutated = mutates(node, model)
        if mutated is None or source(mutated, model).op != "placeholder":
            continue
        if node.op == "call_module":
            layer = copy.copy(model.get_submodule(str(node.target)))
            layer.__dict__["inplace"] = False
            replaced[str(node.target)] = layer
        elif node.op == "call_method":
            node.target = str(node.target)[:-1]
        else:
            node.target, node.kwargs = out_of_place(node.target, dict(node.kwargs))
    return replaced
