"""The batch norms of a caller's own model, brought under the rule that statistics move once per update."""

from torch import nn

from conveyor.models.layers.norms import BatchNorm


def adopt_norms(model: nn.Module) -> nn.Module:
    """Replace plain `nn.BatchNorm2d` layers by ours, in place; they share parameters, buffers and state-dict names.

    Layers without running statistics, without scale and shift, or with a cumulative average (momentum None) stay as
    they are.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (
                type(child) is nn.BatchNorm2d
                and child.affine
                and child.track_running_stats
                and child.momentum is not None
            ):
                setattr(parent, name, _ours(child, child.momentum))
    return model


def _ours(plain: nn.BatchNorm2d, momentum: float) -> BatchNorm:
    made = BatchNorm(plain.num_features, eps=plain.eps, momentum=momentum).to(plain.weight.device)
    made.weight, made.bias = plain.weight, plain.bias
    assert plain.running_mean is not None
    assert plain.running_var is not None
    assert plain.num_batches_tracked is not None
    made.running_mean, made.running_var = plain.running_mean, plain.running_var
    made.num_batches_tracked = plain.num_batches_tracked
    made.training = plain.training
    return made
