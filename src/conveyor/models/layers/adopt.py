"""Layers of a model that was written elsewhere, brought under the rules of a run.

Statistics of batch norms move once per update; what is dropped at random depends on (seed, update, slot, layer).
"""

from typing import Any

from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.models.layers.norms import FUSED_ACTIVATIONS, BatchNorm
from conveyor.models.layers.stochastic import DropConnect, Dropout


class NormAct(BatchNorm):
    """Batch norm that holds the activation behind it, as timm's BatchNormAct2d: act(drop(norm(x)))."""

    is_unit = True
    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor, residual: Tensor | None = None, act: str = "none") -> Tensor:
        kind = FUSED_ACTIVATIONS.get(type(self.act)) if type(self.drop) is nn.Identity else None
        if kind is not None and self.fused and self.training:
            return super().forward(x, residual, kind)
        return self.act(self.drop(super().forward(x, residual, act)))


class FlatNorm(BatchNorm):
    """Batch norm of vectors [N, C] or sequences [N, C, L], as `nn.BatchNorm1d`."""

    is_unit = True

    def forward(self, x: Tensor, residual: Tensor | None = None, act: str = "none") -> Tensor:
        """As for maps of L x 1 or of one pixel."""
        return super().forward(x.reshape(*x.shape[:2], -1, 1), residual, act).reshape(x.shape)


_OURS: dict[type[nn.Module], type[BatchNorm]] = {nn.BatchNorm2d: BatchNorm, nn.BatchNorm1d: FlatNorm}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def adopt_norms(model: nn.Module) -> nn.Module:
    """Replace plain batch norms of maps and of vectors by ours, in place; they share parameters, buffers and state-dict names.

    Layers without running statistics, without scale and shift, or with a cumulative average (momentum None) stay as
    they are.
    """
    return _replaced(model, _norm)


def adopt_random_layers(model: nn.Module) -> nn.Module:
    """Replace dropout and stochastic depth by ours, in place: plain ones draw from a generator that each worker has for itself."""
    return _replaced(model, _random)


def check_adopted(model: nn.Module, name: str) -> nn.Module:
    """Refuse a model whose results would depend on the layout of the run."""
    for path, layer in model.named_modules():
        plain = isinstance(layer, _BATCH_NORMS) and not isinstance(layer, BatchNorm)
        if (plain and layer.track_running_stats) or (isinstance(layer, _DROPOUTS) and layer.p > 0):
            raise UserError(
                f"{name} has a layer {path} ({type(layer).__name__}) that cannot be made independent of the layout of a run: "
                "choose another model"
            )
    return model


def _replaced(model: nn.Module, ours: Any) -> nn.Module:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            made = ours(child)
            if made is not None:
                made.training = child.training
                setattr(parent, name, made)
    return model


def _norm(layer: nn.Module) -> BatchNorm | None:
    ours = NormAct if type(layer).__name__ == "BatchNormAct2d" else _OURS.get(type(layer))
    if ours is None or not isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return None
    if not (layer.affine and layer.track_running_stats) or layer.momentum is None:
        return None
    made = ours(layer.num_features, eps=layer.eps, momentum=layer.momentum)
    made.to(layer.weight.device)
    made.weight, made.bias = layer.weight, layer.bias
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    made.running_mean, made.running_var = layer.running_mean, layer.running_var
    made.num_batches_tracked = layer.num_batches_tracked
    if isinstance(made, NormAct):
        made.drop, made.act = layer.get_submodule("drop"), layer.get_submodule("act")
    return made


def _random(layer: nn.Module) -> nn.Module | None:
    """By name where the class is timm's (DropPath) or torchvision's (StochasticDepth): neither need be installed."""
    if type(layer) is nn.Dropout:
        return Dropout(layer.p)
    if type(layer).__name__ == "DropPath" and getattr(layer, "scale_by_keep", False):
        return DropConnect(float(getattr(layer, "drop_prob", None) or 0.0))
    if type(layer).__name__ == "StochasticDepth" and getattr(layer, "mode", "") == "row":
        return DropConnect(float(layer.p))  # type: ignore[arg-type]
    return None
