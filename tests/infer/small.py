"""A small network with everything that folding must handle, used by the tests of inference and serving."""

import torch
from torch import Tensor, nn

from conveyor.infer.engines.engine import Source
from conveyor.infer.graph import serving_graph
from conveyor.infer.preprocessing import Preprocessing


class Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=True)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


class SmallNet(nn.Module):
    """Ends in a linear layer; the norm before the blocks follows a sum, so it cannot be folded."""

    def __init__(self, channels: int = 3, num_classes: int = 10, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2))
        self.lonely = nn.BatchNorm2d(2 * width)
        self.fc = nn.Linear(2 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.bn(self.stem(x))))
        return self.fc(self.lonely(x).mean((2, 3)))


def small_net(channels: int = 3, num_classes: int = 10, seed: int = 0) -> SmallNet:
    """A network whose batch norms have statistics that matter."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = SmallNet(channels, num_classes).eval()
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
                nn.init.normal_(module.weight, 1.0, 0.2)
                nn.init.normal_(module.bias, 0.0, 0.2)
    return net


def small_source(preprocessing: Preprocessing) -> Source:
    """That network as engines take it."""
    return Source(preprocessing, graph=serving_graph(small_net(), preprocessing))
