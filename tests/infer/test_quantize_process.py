"""Which tensors of an 8-bit model are rounded, read from the file."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from torch import nn

from conveyor.infer import quantize
from conveyor.infer.engines.engine import Source
from conveyor.infer.graph import serving_graph
from conveyor.infer.preprocessing import Preprocessing

PREPROCESSING = Preprocessing(image_size=16, channels=3, normalization="imagenet")
IMAGES = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)


def consumers_of_convolutions(file: Path) -> list[str]:
    graph = onnx.load(str(file)).graph
    made = {node.output[0] for node in graph.node if node.op_type == "Conv"}
    return [node.op_type for node in graph.node if made.intersection(node.input)]


@pytest.mark.parametrize(("activation", "rounded"), [(nn.SiLU, False), (nn.ReLU, True)])
def test_a_convolution_is_rounded_before_an_operation_in_8_bits_only(
    activation: type[nn.Module], rounded: bool
) -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), activation(), nn.Conv2d(8, 8, 3), activation(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip
    source = Source(PREPROCESSING, graph=serving_graph(network, PREPROCESSING))
    found = consumers_of_convolutions(quantize.int8_file(source, IMAGES, None, 8))
    assert len(found) >= 2
    if rounded:
        assert set(found) <= {"QuantizeLinear", "Relu"}
    else:
        assert "QuantizeLinear" not in found
