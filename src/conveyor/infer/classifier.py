"""What `conveyor.load` returns: a module in evaluation mode with its labels and its preprocessing."""

from typing import Any

import torch
from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.infer.graph import ServingGraph
from conveyor.infer.loaded import Loaded


class Classifier(nn.Module):
    """A trained network, ready to use.

    Called with 8-bit images [N, H, W, C] it normalises them as in training; called with floats [N, C, H, W] it takes them
    as normalised already. Both give logits [N, classes].
    """

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        if loaded.module is None:
            raise UserError(
                f"{loaded.name} is an ONNX or OpenVINO export and has no PyTorch module: load the run instead"
            )
        self.graph = ServingGraph(loaded.module, loaded.preprocessing)
        self.class_names = loaded.class_names
        self.preprocessing = loaded.preprocessing
        self.spec = loaded.spec
        self.eval()

    @property
    def net(self) -> nn.Module:
        """The network itself."""
        return self.graph.network

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.graph(images) if images.dtype == torch.uint8 else self.net(images)
        return result

    @torch.inference_mode()
    def predict(self, images: Any, top: int = 5) -> list[list[tuple[str, float]]]:
        """The `top` most probable classes of each 8-bit image [N, H, W, C]: (name, probability), best first."""
        probabilities = self(torch.as_tensor(images)).softmax(1)
        values, indices = probabilities.topk(min(top, probabilities.shape[1]))
        return [
            [(self.label(int(index)), float(value)) for index, value in zip(row_indices, row_values, strict=True)]
            for row_indices, row_values in zip(indices, values, strict=True)
        ]

    def label(self, index: int) -> str:
        """The name of a class, or its number where names are unknown."""
        return self.class_names[index] if index < len(self.class_names) else str(index)
