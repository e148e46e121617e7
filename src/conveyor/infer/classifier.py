"""What `conveyor.load` returns: a module in evaluation mode with its labels and its preprocessing."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from conveyor.data.photo.decode import BadImageError, Encoded
from conveyor.errors import UserError
from conveyor.infer.graph import ServingGraph
from conveyor.infer.loaded import Loaded
from conveyor.infer.photograph import pixels_of


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
    def checkpoint(self) -> str:
        """Which checkpoint of a run it is, with its accuracy; empty for an export."""
        return str(self.spec.get("chosen", ""))

    @property
    def net(self) -> nn.Module:
        """The network itself."""
        return self.graph.network

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.graph(images) if images.dtype == torch.uint8 else self.net(images)
        return result

    @torch.inference_mode()
    def predict(self, images: Any, top: int = 5) -> list[list[tuple[str, float]]]:
        """The `top` most probable classes of each image: (name, probability), best first.

        `images` are 8-bit [N, H, W, C], or a list of image files (paths, or their bytes), prepared as in validation.
        """
        if isinstance(images, list) and images and isinstance(images[0], str | Path | bytes):
            images = np.stack([self._read(image) for image in images])
        probabilities = self(torch.as_tensor(images)).softmax(1)
        values, indices = probabilities.topk(min(top, probabilities.shape[1]))
        return [
            [(self.label(int(index)), float(value)) for index, value in zip(row_indices, row_values, strict=True)]
            for row_indices, row_values in zip(indices, values, strict=True)
        ]

    def _read(self, file: str | Path | bytes) -> NDArray[np.uint8]:
        try:
            content = file if isinstance(file, bytes) else Path(file).read_bytes()
            return pixels_of(Encoded(content), self.preprocessing)
        except OSError as error:
            raise UserError(f"cannot read {file!s}: {error.strerror}") from None
        except BadImageError as error:
            name = "these bytes" if isinstance(file, bytes) else file
            raise UserError(f"cannot decode {name}: {error}") from None

    def label(self, index: int) -> str:
        """The name of a class, or its number where names are unknown."""
        return self.class_names[index] if index < len(self.class_names) else str(index)
