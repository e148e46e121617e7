"""Proxy-normalised activations (Labatie et al. 2021): group norm without the drift of channel-wise moments."""

import torch
from torch import Tensor, nn

GRID_POINTS = 200


def proxy_grid() -> Tensor:
    """Equally likely values of a standard normal: the inverse distribution function at (i + 1/2) / `GRID_POINTS`."""
    return torch.special.ndtri((torch.arange(GRID_POINTS, dtype=torch.float64) + 0.5) / GRID_POINTS).float()


class ProxyNormActivation(nn.Module):
    """The affine step and activation after a norm, normalised by the moments that a normal input would give.

    Forward, for y normalised per group and a = act(weight * y + bias):
    (a - mean) / sqrt(var + eps), where mean and var are those of act(weight * z + bias) over the proxy
    z = proxy_shift + (1 + proxy_scale) * grid, channel by channel. The moments depend on the parameters alone, so
    there is no batch statistic; gradients flow through them. [N, C, H, W] to the same shape.

    A norm with no activation behind it stays a plain affine group norm: its proxy would cancel its own affine step.
    """

    grid: Tensor

    def __init__(self, channels: int, activation: nn.Module, epsilon: float) -> None:
        super().__init__()
        self.act = activation
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.proxy_shift = nn.Parameter(torch.zeros(channels))
        self.proxy_scale = nn.Parameter(torch.zeros(channels))
        self.register_buffer("grid", proxy_grid(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.act(torch.addcmul(self.bias.view(1, -1, 1, 1), x, self.weight.view(1, -1, 1, 1)))
        proxy = self.proxy_shift + (1 + self.proxy_scale) * self.grid[:, None]
        var, mean = torch.var_mean(self.act(self.weight * proxy + self.bias), 0, correction=0)
        scale = torch.rsqrt(var + self.epsilon)
        return torch.addcmul((-mean * scale).view(1, -1, 1, 1), activated, scale.view(1, -1, 1, 1))

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, epsilon={self.epsilon}"
