"""Where in an image the evidence for an answer lies: Grad-CAM, weighted at each place (LayerCAM)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conveyor.models.clone import evaluating

SMALLEST = 4
"""Least height and width of a layer's map: the last layers of a network for small images have maps of 1 or 2 pixels."""


def heat_maps(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor | None:
    """[N, h, w] in 0..1 for images [N, C, H, W] and the class [N] whose evidence is wanted; None without a map to look at.

    M = relu(sum_k relu(dy_c / dA_k) * A_k), divided by its largest value, where A [K, h, w] is the output of the deepest
    module with maps of at least `SMALLEST` pixels a side, and y_c the logit. Weighting each place by its own gradient
    instead of the mean keeps maps of earlier layers meaningful.
    """
    outputs: list[Tensor] = []

    def keep(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() == 4 and output.requires_grad and output is not images:
            outputs.append(output)

    hooks = [module.register_forward_hook(keep) for module in model.modules()]
    try:
        with evaluating(model), torch.enable_grad():
            images = images.detach().requires_grad_()
            logits: Tensor = model(images)
            layer = next((one for one in reversed(outputs) if min(one.shape[2:]) >= SMALLEST), None)
            if layer is None:
                return None
            chosen = logits.gather(1, classes[:, None]).sum()  # images do not depend on each other in evaluation mode
            (gradient,) = torch.autograd.grad(chosen, layer)
    finally:
        for hook in hooks:
            hook.remove()
    found = F.relu((F.relu(gradient) * layer.detach()).sum(1))
    return found / found.amax((1, 2), keepdim=True).clamp_min(1e-12)
