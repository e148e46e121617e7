"""Conversion of a serving graph to ONNX, which ONNX Runtime and OpenVINO both read."""

import contextlib
import logging
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from conveyor.infer.graph import ServingGraph
from conveyor.infer.metadata import BATCH_DIMENSION, INPUT, OUTPUT

LARGEST_BATCH = 65_536
_converted: "weakref.WeakKeyDictionary[ServingGraph, bytes]" = weakref.WeakKeyDictionary()


def to_onnx(graph: ServingGraph, batch: int | None = None) -> bytes:
    """The graph as a serialised ONNX model with a free batch, or a fixed one; free ones are remembered per graph."""
    if batch is None and graph in _converted:
        return _converted[graph]
    example, free = example_input(graph, batch)
    with quiet():
        program = torch.onnx.export(
            graph,
            (example,),
            dynamo=True,
            dynamic_shapes=free,
            input_names=[INPUT],
            output_names=[OUTPUT],
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    # Lines of source files and their folders on this machine: nothing reads them, and equal models would be unequal files.
    for each in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        each.ClearField("metadata_props")
    serialised: bytes = model.SerializeToString()
    if batch is None:
        _converted[graph] = serialised
    return serialised


def example_input(graph: ServingGraph, batch: int | None) -> tuple[torch.Tensor, dict[str, Any] | None]:
    """Images to trace the graph with, and which of their sizes stay free: that of the batch, unless it is given."""
    example = torch.zeros((batch or 2, *graph.preprocessing.image_shape), dtype=torch.uint8)
    free = {"images": {0: torch.export.Dim(BATCH_DIMENSION, min=1, max=LARGEST_BATCH)}} if batch is None else None
    return example, free


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's warnings about a missing torchvision and its own deprecations: no user can act on them."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
