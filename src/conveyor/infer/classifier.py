"""What `conveyor.load` returns: a module in evaluation mode with its labels and its preprocessing."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.infer.graph import ServingGraph
from conveyor.infer.loaded import Loaded
from conveyor.infer.predict import Picture, Prediction, find_files, images_of, predictions
from conveyor.numerics.threads import check_fork


class Classifier(nn.Module):
    """A trained network, ready to use.

    Called with 8-bit images [N, H, W, C] it normalises them as in training; called with floats [N, C, H, W] it takes them
    as normalised already. Both give logits [N, classes].
    """

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        if loaded.module is None:
            raise UserError(
                f"this export of {loaded.name} is for ONNX Runtime or OpenVINO and has no PyTorch module: load the run instead"
            )
        self.graph = ServingGraph(loaded.module, loaded.preprocessing, loaded.temperature)
        self.class_names = loaded.class_names
        self.label = loaded.label
        self.preprocessing = loaded.preprocessing
        self.spec = loaded.spec
        self._loaded = loaded
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

    def predict(self, images: Any) -> Prediction | list[Prediction]:
        """The prediction for an image: label, probability, and those of all classes.

        An image is a file (its path, or its bytes), a PIL image, or an 8-bit array [H, W, C] or [H, W] of any size; it is
        resized and cropped as in validation. A list, a folder or an array [N, H, W, C] gives a list of results, where a
        file that cannot be read is one with an `error`; alone it is a `UserError`.
        """
        check_fork()
        single, pictures = _pictures(images)
        found = list(predictions(pictures, self._loaded, self._logits))
        if not single:
            return found
        if found[0].error:
            raise UserError(f"cannot read {found[0].file or 'this image'}: {found[0].error}")
        return found[0]

    def _logits(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.inference_mode():
            logits: Tensor = self(torch.from_numpy(images))
        return logits.numpy()


def _pictures(images: Any) -> tuple[bool, list[tuple[str, Picture]]]:
    """Whether it is one image, and the images with their names."""
    if isinstance(images, list | tuple):
        return False, [picture for one in images for picture in _pictures(one)[1]]
    if isinstance(images, str | Path):
        files = find_files([images])
        return Path(images).is_file(), [(file, file) for file in files]
    if isinstance(images, Tensor):
        images = images.numpy()
    if isinstance(images, np.ndarray):
        return images.ndim < 4, [("", image) for image in images_of(images)]
    if isinstance(images, bytes | Image.Image):
        return True, [("", images)]
    raise UserError(
        f"{type(images).__name__} is no image: give a file, a folder, a PIL image, an 8-bit array, or a list"
    )
