"""A model as a list of named units, the places where it can be cut, and what each one costs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from conveyor.measure import parts
from conveyor.models import catalogue
from conveyor.models.catalogue import Counts
from conveyor.models.clone import apart, weightless
from conveyor.models.graph import final_users, tensor_nodes, trace_graph
from conveyor.models.library_names import layer_names
from conveyor.models.registry import build


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One layer call or tensor operation of the traced model.

    `path` is the module path, or the owner's path and the operation's name (`layer1.0.add`); `aliases` are its other
    names (`library_names`), and the containers that begin here. Figures are for one image in float32: `shape` without the
    batch, `crossing_bytes` everything that a cut before this unit sends.
    """

    index: int
    name: str
    path: str
    kind: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    parameters: int
    activation_bytes: int
    crossing_bytes: int
    multiply_adds: int
    within: tuple[str, ...] = ()
    """The same under the other names of the blocks that hold it: `b2/0/conv1`."""
    inside: bool = False
    """Whether it takes its tensor out of several in one value, as `chunk` gives them, so that no stage can begin here."""


def trace(model: nn.Module, image_size: int, in_channels: int = 3) -> list[Unit]:
    """The units of `model` for images of this size. The model is not run: shapes come from a copy on the meta device."""
    graph = trace_graph(model)
    nodes = tensor_nodes(graph)
    paths = list(_paths(nodes))
    tensors = _shapes(model, graph, image_size, in_channels)
    shapes = {node: tensors.get(node, ()) for node in graph.nodes}
    position = {node: index for index, node in enumerate(nodes)}
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    last_use = {
        node: max((position.get(user, len(nodes)) for user in final_users(node)), default=-1)
        for node in [*inputs, *nodes]
    }
    names: dict[int, list[str]] = {}
    within: dict[int, list[str]] = {}
    for alias, path in [*_containers(paths), *layer_names(model)]:
        held = [index for index, unit_path in enumerate(paths) if is_inside(unit_path, path)]
        if held and alias != paths[held[0]]:
            names.setdefault(held[0], []).append(alias)
        for index in held if alias != path else ():
            within.setdefault(index, []).append(alias + paths[index].removeprefix(path).replace(".", "/"))
    units = []
    for index, (node, path) in enumerate(zip(nodes, paths, strict=True)):
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        first_call = str(node.target) == path
        crossing = [other for other, use in last_use.items() if position.get(other, -1) < index <= use]
        units.append(
            Unit(
                index=index,
                name=node.name,
                path=path,
                kind=type(module).__name__ if module is not None else _operation(node),
                aliases=tuple(dict.fromkeys(names.get(index, []))),
                shape=shapes[node][1:],
                parameters=sum(p.numel() for p in module.parameters()) if module is not None and first_call else 0,
                activation_bytes=_bytes(shapes[node]),
                crossing_bytes=sum(_bytes(shapes[other]) for other in crossing),
                multiply_adds=layer_multiply_adds(module, shapes[node]),
                within=tuple(within.get(index, [])),
                inside=any(other not in tensors for other in crossing),
            )
        )
    return units


def counted(name: str, image_size: int, num_classes: int) -> Counts:
    """Parameters and multiply-adds of the model `name`."""
    with torch.device("meta"):
        model = build(name, num_classes=num_classes, image_size=image_size)
    return Counts(sum(one.numel() for one in model.parameters()), model_multiply_adds(model, image_size))


def count(name: str) -> Counts:
    """The same of a shipped model at its own image size and class count."""
    entry = catalogue.entry(name)
    return counted(name, entry.image_size, entry.num_classes)


def model_multiply_adds(model: nn.Module, image_size: int, in_channels: int = 3) -> int:
    """Multiply-adds of one image through the convolutions and dense layers of `model`."""
    graph = trace_graph(model)
    shapes = _shapes(model, graph, image_size, in_channels)
    return sum(
        layer_multiply_adds(model.get_submodule(str(node.target)), shapes[node])
        for node in graph.nodes
        if node.op == "call_module" and node in shapes
    )


def layer_multiply_adds(module: nn.Module | None, shape: tuple[int, ...]) -> int:
    """Multiply-adds of a convolution or dense layer whose output has this shape; 0 for anything else."""
    if isinstance(module, nn.Conv2d):
        return math.prod(shape) * module.in_channels // module.groups * math.prod(module.kernel_size)
    if isinstance(module, nn.Linear):
        return math.prod(shape) * module.in_features
    return 0


def _bytes(shape: tuple[int, ...]) -> int:
    return 4 * math.prod(shape)


def _operation(node: fx.Node) -> str:
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))
    return {"iadd": "add", "imul": "mul"}.get(name, name)


def _paths(nodes: list[fx.Node]) -> Iterator[str]:
    """Unique paths: a second use of the same layer or operation gets `:2`."""
    seen: dict[str, int] = {}
    for node in nodes:
        if node.op == "call_module":
            path = str(node.target)
        else:
            owners = list(node.meta.get("nn_module_stack", {}))
            owner = f"{owners[-1]}." if owners and owners[-1] else ""
            path = owner + _operation(node)
        seen[path] = seen.get(path, 0) + 1
        yield path if seen[path] == 1 else f"{path}:{seen[path]}"


def is_inside(unit_path: str, path: str) -> bool:
    """Whether a unit is the module at `path`, or in it."""
    return unit_path == path or unit_path.startswith(path + ".")


def _containers(paths: list[str]) -> Iterator[tuple[str, str]]:
    """(container, container) for each module that holds units, in order: its name means its first unit."""
    seen = set(paths)
    for path in paths:
        parts = path.split(".")
        for length in range(1, len(parts)):
            container = ".".join(parts[:length])
            if container not in seen:
                seen.add(container)
                yield container, container


class _ShapeRecorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.shapes[n.name] = tuple(value.shape)
        return value


def _shapes(model: nn.Module, graph: fx.Graph, image_size: int, in_channels: int) -> dict[fx.Node, tuple[int, ...]]:
    """Shape of every tensor for one image, in evaluation mode on the meta device; what is no tensor is left out."""
    recorder = _ShapeRecorder(fx.GraphModule(weightless(model).eval(), graph))
    with torch.no_grad():
        recorder.run(torch.empty(1, in_channels, image_size, image_size, device="meta"))
    return {node: recorder.shapes[node.name] for node in graph.nodes if node.name in recorder.shapes}


def unit_seconds(model: nn.Module, images: Tensor, repeats: int = parts.REPEATS) -> dict[str, tuple[float, float]]:
    """Forward and backward seconds of each unit (node name), in order, here: see `measure.parts.unit_seconds`.

    The model is copied, so its statistics, gradients and random numbers stay as they are.
    """
    twin = apart(model).train()
    graph = fx.GraphModule(twin, trace_graph(twin))
    with torch.random.fork_rng(devices=[]):
        found = parts.unit_seconds(graph, images, repeats)
    return {node.name: found[node.name] for node in tensor_nodes(graph.graph)}
