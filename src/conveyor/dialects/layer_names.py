"""How the older programs name the layers at which a model can be cut.

Each function yields (name in a dialect, module path here). The name means the first unit inside that path.
"""

from torch import nn

from conveyor.models.efficientnet import EfficientNet
from conveyor.models.layers.norms import GroupNorm
from conveyor.models.library_names import Names, block_parts, mobile_blocks, resnet_blocks
from conveyor.models.resnet import Bottleneck, ResNet


def every_name(model: nn.Module) -> Names:
    """The names of all dialects for the layers of `model`."""
    for dialect in ("tensorflow1", "tensorflow2", "pytorch"):
        yield from names_in(model, dialect)


def names_in(model: nn.Module, dialect: str) -> Names:
    """The names that one dialect's program has for the layers of `model`; none where it goes by module paths."""
    if dialect == "tensorflow1" and isinstance(model, ResNet):
        yield from _tensorflow1_resnet(model)
    elif dialect == "tensorflow1" and isinstance(model, EfficientNet):
        yield from _tensorflow1_efficientnet(model)
    elif dialect == "tensorflow2" and isinstance(model, ResNet):
        yield from _keras_resnet(model)
    elif dialect == "pytorch" and isinstance(model, EfficientNet):
        yield from _efficientnet_pytorch(model)


def _tensorflow1_resnet(model: ResNet) -> Names:
    yield "b0", "conv1"
    for stage, index, path, block in resnet_blocks(model):
        last = f"{path}.{'act3' if isinstance(block, Bottleneck) else 'act2'}"
        yield f"b{stage}/{index}", path
        yield f"b{stage}/{index}/relu", last
        yield f"stage{stage}/unit{index + 1}", path
        yield f"stage{stage}/unit{index + 1}/relu", last
    yield "reduce_mean", "avgpool"
    yield "fc1", "fc"


def _keras_resnet(model: ResNet) -> Names:
    """The names of Keras's application, or those of the original's network for small images, which has no pooling."""
    small = model.maxpool is None
    stem = {"conv1_pad": "conv1", "conv1_conv": "conv1", "conv1_bn": "bn1", "conv1_relu": "act1"}
    stem |= {"pool1_pad": "maxpool", "pool1_pool": "maxpool"}
    names = [(name, path) for name, path in stem.items() if not (small and name.endswith(("_pad", "_pool")))]
    for stage, index, path, block in resnet_blocks(model):
        prefix, layers = f"conv{stage + 1}_block{index + 1}", 3 if isinstance(block, Bottleneck) else 2
        if small:
            names += [(f"{prefix}_layer1_conv_ds", f"{path}.conv1")] if stage > 1 and index == 0 else []
            names += [(f"{prefix}_shortcut", f"{path}.downsample")]
        else:
            names += [(f"{prefix}_0_conv", f"{path}.downsample.0"), (f"{prefix}_0_bn", f"{path}.downsample.1")]
        names += _keras_layers(f"{prefix}_layer" if small else f"{prefix}_", path, layers)
        names += [(f"{prefix}_add", f"{path}.add")]
        names += [(f"{prefix}_{'post_addition_relu' if small else 'out'}", f"{path}.act{layers}")]
    names += [("avg_pool", "avgpool"), ("fc_layer" if small else "predictions", "fc")]
    grouped = isinstance(model.bn1, GroupNorm)
    for name, path in names:
        yield name, path
        if grouped and name.endswith("bn"):
            yield name[:-2] + "gn", path


def _keras_layers(prefix: str, path: str, layers: int) -> Names:
    """The layers of a block, up to the addition."""
    for layer in range(1, layers + 1):
        yield f"{prefix}{layer}_conv", f"{path}.conv{layer}"
        yield f"{prefix}{layer}_bn", f"{path}.bn{layer}"
        if layer < layers:
            yield f"{prefix}{layer}_relu", f"{path}.act{layer}"


def _tensorflow1_efficientnet(model: EfficientNet) -> Names:
    """Blocks with an identity skip are one unit; the others have /b (grouped convolution), /SE and /c (projection)."""
    yield "block0", "conv_stem"
    for stage, index, path, block in mobile_blocks(model):
        name, parts = f"block{stage + 1}{chr(ord('a') + index)}", block_parts(block)
        yield name, path
        if not block.has_skip:
            yield f"{name}/b", f"{path}.{parts['dw']}"
            yield f"{name}/SE", f"{path}.se"
            yield f"{name}/c", f"{path}.{parts['project']}"
    yield "Top", "conv_head"


def _efficientnet_pytorch(model: EfficientNet) -> Names:
    yield "_conv_stem", "conv_stem"
    yield "_bn0", "bn1"
    for flat, (_, _, path, block) in enumerate(mobile_blocks(model)):
        prefix, parts = f"_blocks.{flat}", block_parts(block)
        yield prefix, path
        if "expand" in parts:
            yield f"{prefix}._expand_conv", f"{path}.{parts['expand']}"
            yield f"{prefix}._bn0", f"{path}.{parts['expand_bn']}"
        yield f"{prefix}._depthwise_conv", f"{path}.{parts['dw']}"
        yield f"{prefix}._bn1", f"{path}.{parts['dw_bn']}"
        yield f"{prefix}._swish", f"{path}.{parts.get('expand_act', parts['dw_act'])}"
        yield f"{prefix}._se_reduce", f"{path}.se.conv_reduce"
        yield f"{prefix}._se_expand", f"{path}.se.conv_expand"
        yield f"{prefix}._project_conv", f"{path}.{parts['project']}"
        yield f"{prefix}._bn2", f"{path}.{parts['project_bn']}"
    yield from (("_conv_head", "conv_head"), ("_bn1", "bn2"), ("_avg_pooling", "global_pool"))
    yield from (("_dropout", "dropout"), ("_fc", "classifier"))
