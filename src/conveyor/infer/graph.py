"""The model as it is served: uint8 images to logits, with normalisation inside and batch norms folded into the layers before."""

import copy
import math
from typing import cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from conveyor.data.transform.normalize import Normalization
from conveyor.errors import UserError
from conveyor.infer.preprocessing import Preprocessing
from conveyor.models.graph import trace_graph
from conveyor.models.layers.adopt import NormAct

_FOLDABLE = ("Conv2d", "SameConv", "Conv2dSame")
"""Convolutions whose weights are used as they are; others of timm's change them first."""


class ServingGraph(nn.Module):
    """uint8 [N, H, W, C] -> float32 logits [N, K].

    Normalisation cannot be folded into the first convolution: its zero padding is zero *after* normalisation.
    """

    scale: Tensor
    shift: Tensor
    zero: Tensor
    one: Tensor

    def __init__(self, network: nn.Module, preprocessing: Preprocessing, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature
        """Logits are divided by it: see `evaluate.calibration`."""
        self.network = network
        self.preprocessing = preprocessing
        normalization = Normalization.named(preprocessing.normalization, preprocessing.channels)
        self.per_image = normalization.per_image
        self.register_buffer("scale", torch.tensor(normalization.scale), persistent=False)
        self.register_buffer("shift", torch.tensor(normalization.shift), persistent=False)
        self.register_buffer("zero", torch.zeros(preprocessing.channels), persistent=False)
        self.register_buffer("one", torch.ones(preprocessing.channels), persistent=False)
        self.copies = 3 if preprocessing.channels == 1 and preprocessing.in_channels >= 3 else 1
        """How often a grey image is repeated for a network that takes colours, as in training."""
        self.extra_channels = preprocessing.in_channels - self.copies * preprocessing.channels
        self.smallest_deviation = 1 / math.sqrt(math.prod(preprocessing.image_shape))

    def forward(self, images: Tensor) -> Tensor:
        x = images.permute(0, 3, 1, 2).to(self.scale.dtype)
        if self.per_image:
            mean = x.mean(dim=(1, 2, 3), keepdim=True)
            deviation = (x - mean).square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
            x = (x - mean) / deviation.clamp_min(self.smallest_deviation)
        else:
            # x * scale + shift, expressed as a norm over (0, 1): engines do that in one pass instead of two.
            x = nn.functional.batch_norm(x, self.zero, self.one, self.scale, self.shift, eps=0.0)
        if self.copies > 1:
            x = torch.cat([x] * self.copies, 1)
        if self.extra_channels > 0:
            x = nn.functional.pad(x, (0, 0, 0, 0, 0, self.extra_channels))
        logits = cast(Tensor, self.network(x)).float()
        return logits if self.temperature == 1.0 else logits / self.temperature


def serving_graph(network: nn.Module, preprocessing: Preprocessing, temperature: float = 1.0) -> ServingGraph:
    """A copy of `network` for inference: evaluation mode, float32, batch norms folded, channels last."""
    folded = fold_norms(copy.deepcopy(network).float().eval())
    graph = ServingGraph(folded, preprocessing, temperature).eval().requires_grad_(False)
    return graph.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def fold_norms(network: nn.Module) -> nn.Module:
    """Fold each batch norm that alone follows a convolution or a linear layer into its weights.

    With running mean m, variance v: w' = w * gamma / sqrt(v + eps), b' = (b - m) * gamma / sqrt(v + eps) + beta.
    A network that cannot be traced is returned as it is: slower, never wrong.
    """
    try:
        traced = fx.GraphModule(network, trace_graph(network))
    except UserError:
        return network
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], nn.BatchNorm1d | nn.BatchNorm2d):
            continue
        before = node.args[0] if node.args else None
        norm = modules[node.target]
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1 or not _plain(norm):
            continue
        layer = modules[str(before.target)]
        if sum(1 for each in traced.graph.nodes if each.op == "call_module" and each.target == before.target) > 1:
            continue
        if isinstance(layer, nn.Conv2d) and type(layer).__name__ in _FOLDABLE:
            fused: nn.Module = fuse_conv_bn_eval(layer, norm)
        elif isinstance(layer, nn.Linear):
            fused = fuse_linear_bn_eval(layer, norm)
        else:
            continue
        _replace(traced, str(before.target), fused)
        modules[str(before.target)] = fused
        if isinstance(norm, NormAct):  # its activation stays where the norm was
            _replace(traced, str(node.target), norm.act)
            modules[str(node.target)] = norm.act
            continue
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.graph.lint()
    traced.recompile()
    traced.delete_all_unused_submodules()
    return traced


def _plain(norm: nn.Module) -> bool:
    """Whether the norm is y = gamma (x - mean) / sqrt(var + eps) + beta with stored statistics, and nothing more."""
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    return norm.running_mean is not None and norm.weight is not None and not norm.training


def _replace(root: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(root.get_submodule(parent), child, module)
