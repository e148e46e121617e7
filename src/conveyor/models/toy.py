"""The toy models: two convolutions, for trying out everything around a network."""

from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.models.initialise import initialise
from conveyor.models.layers.norms import NormChoice


class Toy(nn.Module):
    """3x3 convolution to 4 channels, relu, pool 5; 1x1 convolution to 8, relu, pool 5; dense layer."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int, norm: NormChoice | None) -> None:
        super().__init__()
        side = (image_size - 2) // 5 // 5
        if side < 1:
            raise UserError(f"the toy model needs images of at least 27 pixels, not {image_size}.")
        self.conv2d_0 = nn.Conv2d(in_channels, 4, 3)
        self.relu_0 = nn.ReLU(inplace=True)
        self.max_pool_0 = nn.MaxPool2d(5)
        self.bn_0 = norm.layer(4, activated=False) if norm else None
        self.conv2d_1 = nn.Conv2d(4, 8, 1)
        self.relu_1 = nn.ReLU(inplace=True)
        self.max_pool_1 = nn.MaxPool2d(5)
        self.bn_1 = norm.layer(8, activated=False) if norm else None
        self.flatten = nn.Flatten()
        self.dense = nn.Linear(8 * side * side, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.max_pool_0(self.relu_0(self.conv2d_0(x)))
        if self.bn_0 is not None:
            x = self.bn_0(x)
        x = self.max_pool_1(self.relu_1(self.conv2d_1(x)))
        if self.bn_1 is not None:
            x = self.bn_1(x)
        return self.dense(self.flatten(x))


def make(
    *,
    num_classes: int,
    in_channels: int,
    norm: NormChoice,
    normalised: bool,
    image_size: int = 32,
    init: str = "torch",
) -> Toy:
    """A toy model; `normalised` adds a norm behind each pool. The dense layer's width follows the image size."""
    model = Toy(num_classes, in_channels, image_size, norm if normalised else None)
    initialise(model, init)
    return model
