"""Normalisation layers, and batch norm whose running statistics change once per weight update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional as F

from conveyor.errors import UserError
from conveyor.models.layers.span import joined_batch_norm
from conveyor.numerics import foreach
from conveyor.numerics import group_norm as native_group_norm
from conveyor.numerics import norm_act as fused
from conveyor.numerics.context import norm_batches, statistics_are_frozen


class BatchNorm(nn.BatchNorm2d):
    """Batch norm that gathers statistics over the micro-batches of an update and takes them over in `commit`.

    Training forward: y = weight * (x - mean) / sqrt(var + eps) + bias with the batch's own mean and biased variance;
    (mean, unbiased variance, 1) is added to (pending_mean, pending_var, pending_count). The running statistics do not
    move, so any number of micro-batches, in any order and on any worker, gives the same statistics after `commit`.
    With `span_group` (a process group) the moments are those of all its members' batches together. When several
    micro-batches are concatenated in x (`Key.norm_batches`), each is normalised by itself.

    `stable`: statistics of float32 values whatever the input's type. The kernels already take the variance in a
    second pass over the deviations from the mean.

    `fused` (see `fuse`): norm, residual and activation run as one operation where the tensors allow it.
    `frozen`: it stays in evaluation mode.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    pending_mean: Tensor
    pending_var: Tensor
    pending_count: Tensor
    momentum: float

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, stable: bool = False) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        self.stable = stable
        self.span_group: Any = None
        self.fused = False
        self.frozen = False
        self.register_buffer("pending_mean", torch.zeros(channels), persistent=False)
        self.register_buffer("pending_var", torch.zeros(channels), persistent=False)
        self.register_buffer("pending_count", torch.zeros(1), persistent=False)

    def train(self, mode: bool = True) -> "BatchNorm":
        """Like that of any module, but a frozen norm stays in evaluation mode."""
        super().train(mode and not self.frozen)
        return self

    def forward(self, x: Tensor, residual: Tensor | None = None, act: str = "none") -> Tensor:
        """act(norm(x) + residual): [N, C, H, W] to the same shape, type and memory format."""
        count = norm_batches() if self.training else 1
        if count == 1:
            return self._one_batch(x, residual, act)
        parts = x.chunk(count)
        residuals = [None] * len(parts) if residual is None else residual.chunk(count)
        return torch.cat([self._one_batch(part, added, act) for part, added in zip(parts, residuals, strict=True)])

    def _one_batch(self, x: Tensor, residual: Tensor | None, act: str) -> Tensor:
        if self.training and self.fused and self.span_group is None and fused.fits(x, residual, act):
            y, mean, var = fused.norm_act(x, self.weight, self.bias, residual, act, self.eps)
            self._gather(mean, var)
            return y
        y = self._normalise(x)
        if residual is not None:
            y += residual
        # A frozen norm comes here in training too: its activation by itself has the bits of the modules (see `fuse`).
        return fused.silu(y) if act == "silu" and self.fused else ACTIVATIONS[act](y)

    def _normalise(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        if self.stable:
            x = x.float()
        if not self.training:
            y = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
            return y.to(dtype)
        values = x.shape[0] * x.shape[2] * x.shape[3]
        if self.span_group is not None:
            y, mean, var = joined_batch_norm(x, self.weight, self.bias, self.eps, self.span_group)
        elif values == 1:
            raise UserError(
                "batch norm needs more than one value per channel to learn from, but this micro-batch has one image of"
                " one pixel here: use a larger micro-batch or image, or --norm group."
            )
        else:
            # With momentum 1 the kernel writes the batch's statistics into the buffers: no second pass over x.
            mean, var = torch.zeros((2, self.num_features), dtype=self.pending_mean.dtype, device=x.device).unbind()
            y = _of_flat(x, lambda flat: F.batch_norm(flat, mean, var, self.weight, self.bias, True, 1.0, self.eps))
        self._gather(mean, var)
        return y.to(dtype)

    @torch.no_grad()
    def _gather(self, mean: Tensor, var: Tensor) -> None:
        """Add the statistics of one batch to those of the update."""
        if statistics_are_frozen():
            return
        # Every member of a span's group adds the same joint statistics: together they count once.
        share = 1.0 if self.span_group is None else 1.0 / dist.get_world_size(self.span_group)
        self.pending_mean.add_(mean, alpha=share)
        self.pending_var.add_(var, alpha=share)
        self.pending_count.add_(share)


def _of_flat(x: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
    """norm(x), where maps of one pixel are given to it as [N, C].

    [N, C, 1, 1] is contiguous and channels_last at once, and PyTorch's norms add up in another order for each format.
    Which of the two its strides say can change when it is sent to another worker. Other maps are not viewed: the gradient
    of a view copies a channels-last tensor.
    """
    if isinstance(x, Proxy) or x.shape[2:].numel() != 1:
        return norm(x)
    return norm(x.flatten(1)).view_as(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda y: y, "relu": F.relu_, "silu": F.silu}
FUSED_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu"}
"""Activations that the fused batch norm supports, with its name for each."""
_KINDS = {**FUSED_ACTIVATIONS, nn.Identity: "none"}


def norm_act(norm: nn.Module, act: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """act(norm(x) + residual): one operation when `norm` is fused, else the modules one after the other.

    A tracer always sees the modules, so a pipeline can be cut between them.
    """
    kind = _KINDS.get(type(act))
    if kind is not None and type(norm) is BatchNorm and norm.fused and not isinstance(x, Proxy):
        return norm(x, residual, kind)
    out = norm(x)
    if residual is not None:
        out += residual
    return act(out)


def fuse(model: nn.Module) -> bool:
    """Let every batch norm of `model` run in one operation with what follows it, if this machine can; says whether."""
    if not fused.available():
        return False
    for norm in batch_norms(model):
        norm.fused = not norm.stable
    for module in model.modules():
        if type(module) is nn.SiLU:
            # A pipeline may be cut between the norm and this; the two forms must give the same bits.
            module.forward = fused.silu  # type: ignore[method-assign, assignment]
    return True


class GroupNorm(nn.GroupNorm):
    """Group norm: moments over the H, W and C/groups values of each group of each image.

    `stable` subtracts the mean of float32 values first; torch's kernel for channels_last takes the variance as
    E[x^2] - E[x]^2, which loses all digits when the mean is far larger than the deviation. Subtracting a constant
    does not change the norm's result, so no gradient needs to flow through it.
    """

    def __init__(
        self, groups: int, channels: int, eps: float = 1e-5, stable: bool = False, affine: bool = True
    ) -> None:
        super().__init__(groups, channels, eps=eps, affine=affine)
        self.stable = stable

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to the same shape, type and memory format."""
        # The compiled operation is stable by itself; a validation or an export keeps to PyTorch's own.
        if self.training and native_group_norm.fits(x, self.weight, self.bias):
            return native_group_norm.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        if not self.stable:
            return _of_flat(x, super().forward)
        dtype = x.dtype
        x = x.float()
        with torch.no_grad():
            mean = x.unflatten(1, (self.num_groups, -1)).mean((2, 3, 4))
            mean = mean.repeat_interleave(self.num_channels // self.num_groups, 1).unsqueeze(2).unsqueeze(3)
        return _of_flat(x - mean, super().forward).to(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormChoice:
    """Which norm a network uses; makes the layers.

    kind: batch, group, proxy (group norm with proxy-normalised activations) or none (the convolutions get a bias).
    groups are capped: the number used is the largest divisor of the channel count that is not above the one wanted.
    """

    kind: str = "batch"
    groups: int = 32
    group_channels: int | None = None
    epsilon: float = 1e-5
    momentum: float = 0.1
    stable: bool = False
    proxy_epsilon: float = 0.03

    @property
    def conv_bias(self) -> bool:
        """Whether the convolution before a norm needs a bias of its own."""
        return self.kind == "none"

    def num_groups(self, channels: int) -> int:
        """The number of groups for this many channels."""
        wanted = self.groups if self.group_channels is None else channels // self.group_channels
        return next(groups for groups in range(max(1, min(wanted, channels)), 0, -1) if channels % groups == 0)

    def layer(self, channels: int, activated: bool = True) -> nn.Module:
        """The norm for `channels`; `activated` says that an activation made by `activation` follows directly."""
        if self.kind == "none":
            return nn.Identity()
        if self.kind == "batch":
            return BatchNorm(channels, eps=self.epsilon, momentum=self.momentum, stable=self.stable)
        affine = not (self.kind == "proxy" and activated)
        return GroupNorm(self.num_groups(channels), channels, eps=self.epsilon, stable=self.stable, affine=affine)

    def activation(self, activation: nn.Module, channels: int) -> nn.Module:
        """The activation that follows `layer(channels)`: itself, or its proxy-normalised form."""
        if self.kind != "proxy":
            return activation
        from conveyor.models.layers.proxy_norm import ProxyNormActivation

        return ProxyNormActivation(channels, activation, self.proxy_epsilon)


def batch_norms(model: nn.Module | Sequence[BatchNorm]) -> Sequence[BatchNorm]:
    """The batch norms of a model; a list of them is returned unchanged."""
    if not isinstance(model, nn.Module):
        return model
    return [module for module in model.modules() if isinstance(module, BatchNorm)]


def pending(model: nn.Module | Sequence[BatchNorm]) -> list[Tensor]:
    """The gathered sums of every batch norm (mean, variance, count), to be summed over the workers before `commit`.

    This and what follows take a model, or its norms when the caller has them: searching a model costs time.
    """
    return [
        tensor for norm in batch_norms(model) for tensor in (norm.pending_mean, norm.pending_var, norm.pending_count)
    ]


@torch.no_grad()
def commit(model: nn.Module | Sequence[BatchNorm]) -> None:
    """running = (1 - m) * running + m * pending / count for mean and variance; pending starts again at zero.

    A norm that saw nothing keeps its running statistics. No value is read back from a GPU.
    """
    norms = batch_norms(model)
    if not norms:
        return
    counts = [norm.pending_count for norm in norms]
    running = [norm.running_mean for norm in norms] + [norm.running_var for norm in norms]
    gathered = [norm.pending_mean for norm in norms] + [norm.pending_var for norm in norms]
    tracked = [norm.num_batches_tracked for norm in norms]
    if counts[0].device.type == "cpu":
        # On the host reading the counts needs no synchronisation, and number arguments are faster than tensors.
        numbers = torch.cat(counts).tolist()
        moved = [norm.momentum * min(number, 1.0) for norm, number in zip(norms, numbers, strict=True)]
        foreach.mul_(running, [1.0 - share for share in moved] * 2)
        shares = [share / max(number, 1.0) for share, number in zip(moved, numbers, strict=True)]
        foreach.mul_(gathered, shares * 2)
        foreach.add_(running, gathered)
        foreach.add_(tracked, [round(number) for number in numbers])
    else:
        seen = foreach.clamp_max(counts, 1.0)
        parts = foreach.mul(seen, [norm.momentum for norm in norms])
        kept = foreach.neg(parts)
        foreach.add_(kept, 1.0)
        weights = foreach.div(parts, foreach.clamp_min(counts, 1.0))
        foreach.mul_(running, kept * 2)
        foreach.add_(running, foreach.mul(gathered, weights * 2))
        foreach.add_(tracked, list(torch.cat(counts).round_().long().unbind()))
    foreach.zero_(pending(norms))


def discard(model: nn.Module | Sequence[BatchNorm]) -> None:
    """Forget the gathered statistics, for an update that is skipped."""
    for tensor in pending(model):
        tensor.zero_()
