"""How the original programs and the common libraries name the layers at which a model can be cut.

Each function yields (name in a dialect, module path here). The name means the first unit inside that path.
"""

from collections.abc import Iterator

from torch import nn

from conveyor.models.efficientnet import EfficientNet
from conveyor.models.layers.mbconv import DepthwiseSeparable, InvertedResidual
from conveyor.models.layers.norms import GroupNorm
from conveyor.models.mobilenet import MobileNetV2, MobileNetV3
from conveyor.models.resnet import Bottleneck, ResNet
from conveyor.models.squeezenet import Fire, SqueezeNet

Names = Iterator[tuple[str, str]]


def dialect_names(model: nn.Module) -> Names:
    """All names for `model`, dialect by dialect; paths with `/` for every module come on top in `splits`."""
    if isinstance(model, ResNet):
        yield from _tensorflow1_resnet(model)
        yield from _keras_small_resnet(model) if model.maxpool is None else _keras_resnet(model)
        yield from _torchvision_resnet(model)
    elif isinstance(model, EfficientNet):
        yield from _tensorflow1_efficientnet(model)
        yield from _efficientnet_pytorch(model)
        yield from _torchvision_features(model)
    elif isinstance(model, MobileNetV2 | MobileNetV3):
        yield from _torchvision_features(model)
        yield from _sequences(model)
    elif isinstance(model, SqueezeNet):
        yield from _squeezenet(model)


def names_in(model: nn.Module, dialect: str) -> Names:
    """The names that one dialect's program has for the layers of `model`; none where it goes by module paths."""
    if dialect == "tensorflow1" and isinstance(model, ResNet):
        yield from _tensorflow1_resnet(model)
    elif dialect == "tensorflow1" and isinstance(model, EfficientNet):
        yield from _tensorflow1_efficientnet(model)
    elif dialect == "tensorflow2" and isinstance(model, ResNet):
        yield from _keras_small_resnet(model) if model.maxpool is None else _keras_resnet(model)
    elif dialect == "pytorch" and isinstance(model, EfficientNet):
        yield from _efficientnet_pytorch(model)


def mobile_blocks(model: nn.Module) -> list[tuple[int, int, str, nn.Module]]:
    """(stage, index in the stage, path, block) of an EfficientNet or MobileNet, in order."""
    stages = model.get_submodule("blocks")
    return [
        (stage, index, f"blocks.{stage}.{index}", block)
        for stage, blocks in enumerate(stages.children())
        for index, block in enumerate(blocks.children())
        if isinstance(block, DepthwiseSeparable | InvertedResidual)
    ]


def block_parts(block: nn.Module) -> dict[str, str]:
    """The layers of a mobile block by role: expand, expand_bn, expand_act, dw, dw_bn, dw_act, project, project_bn."""
    if isinstance(block, DepthwiseSeparable):
        return {"dw": "conv_dw", "dw_bn": "bn1", "dw_act": "act1", "project": "conv_pw", "project_bn": "bn2"}
    return {
        "expand": "conv_pw",
        "expand_bn": "bn1",
        "expand_act": "act1",
        "dw": "conv_dw",
        "dw_bn": "bn2",
        "dw_act": "act2",
        "project": "conv_pwl",
        "project_bn": "bn3",
    }


def _resnet_blocks(model: ResNet) -> Iterator[tuple[int, int, str, nn.Module]]:
    for stage, name in enumerate(model.stage_names, 1):
        for index, block in enumerate(model.get_submodule(name).children()):
            yield stage, index, f"{name}.{index}", block


def _tensorflow1_resnet(model: ResNet) -> Names:
    yield "b0", "conv1"
    for stage, index, path, block in _resnet_blocks(model):
        last = f"{path}.{'act3' if isinstance(block, Bottleneck) else 'act2'}"
        yield f"b{stage}/{index}", path
        yield f"b{stage}/{index}/relu", last
        yield f"stage{stage}/unit{index + 1}", path
        yield f"stage{stage}/unit{index + 1}/relu", last
    yield "reduce_mean", "avgpool"
    yield "fc1", "fc"


def _with_group_norm(model: ResNet, names: Names) -> Names:
    """Keras's names say gn instead of bn when the norm is a group norm."""
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


def _keras_resnet(model: ResNet) -> Names:
    def names() -> Names:
        yield "conv1_pad", "conv1"
        yield "conv1_conv", "conv1"
        yield "conv1_bn", "bn1"
        yield "conv1_relu", "act1"
        yield "pool1_pad", "maxpool"
        yield "pool1_pool", "maxpool"
        for stage, index, path, block in _resnet_blocks(model):
            prefix, layers = f"conv{stage + 1}_block{index + 1}", 3 if isinstance(block, Bottleneck) else 2
            yield f"{prefix}_0_conv", f"{path}.downsample.0"
            yield f"{prefix}_0_bn", f"{path}.downsample.1"
            yield from _keras_layers(f"{prefix}_", path, layers)
            yield f"{prefix}_add", f"{path}.add"
            yield f"{prefix}_out", f"{path}.act{layers}"
        yield "avg_pool", "avgpool"
        yield "predictions", "fc"

    return _with_group_norm(model, names())


def _keras_small_resnet(model: ResNet) -> Names:
    def names() -> Names:
        yield "conv1_conv", "conv1"
        yield "conv1_bn", "bn1"
        yield "conv1_relu", "act1"
        for stage, index, path, block in _resnet_blocks(model):
            prefix, layers = f"conv{stage + 1}_block{index + 1}", 3 if isinstance(block, Bottleneck) else 2
            if stage > 1 and index == 0:
                yield f"{prefix}_layer1_conv_ds", f"{path}.conv1"
            yield f"{prefix}_shortcut", f"{path}.downsample"
            yield from _keras_layers(f"{prefix}_layer", path, layers)
            yield f"{prefix}_add", f"{path}.add"
            yield f"{prefix}_post_addition_relu", f"{path}.act{layers}"
        yield "avg_pool", "avgpool"
        yield "fc_layer", "fc"

    return _with_group_norm(model, names())


def _torchvision_resnet(model: ResNet) -> Names:
    """torchvision shares one relu in a block: its name means the first call."""
    yield "relu", "act1"
    for _, _, path, _ in _resnet_blocks(model):
        yield f"{path}.relu", f"{path}.act1"


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


def torchvision_block(block: nn.Module, has_se: bool, v2: bool) -> Names:
    """(torchvision's path below a block, ours) for the layers of one mobile block.

    EfficientNet and MobileNet v3 call the list `block` and wrap each convolution with its norm; MobileNet v2 calls it
    `conv` and leaves the projection unwrapped.
    """
    parts, number = block_parts(block), 0
    holder = "conv" if v2 else "block"
    for role in ("expand", "dw"):
        if role in parts:
            yield f"{holder}.{number}.0", parts[role]
            yield f"{holder}.{number}.1", parts[f"{role}_bn"]
            yield f"{holder}.{number}.2", parts[f"{role}_act"]
            number += 1
    if has_se:
        yield f"{holder}.{number}.fc1", "se.conv_reduce"
        yield f"{holder}.{number}.fc2", "se.conv_expand"
        yield f"{holder}.{number}", "se"
        number += 1
    if v2:
        yield f"{holder}.{number}", parts["project"]
        yield f"{holder}.{number + 1}", parts["project_bn"]
    else:
        yield f"{holder}.{number}.0", parts["project"]
        yield f"{holder}.{number}.1", parts["project_bn"]


def _torchvision_features(model: nn.Module) -> Names:
    for layer, path in enumerate(("conv_stem", "bn1", "act1")):
        yield f"features.0.{layer}", path
    nested, v2 = isinstance(model, EfficientNet), isinstance(model, MobileNetV2)
    blocks = mobile_blocks(model)
    for flat, (stage, index, path, block) in enumerate(blocks):
        prefix = f"features.{stage + 1}.{index}" if nested else f"features.{flat + 1}"
        yield prefix, path
        for theirs, ours in torchvision_block(block, block.se is not None, v2):
            yield f"{prefix}.{theirs}", f"{path}.{ours}"
    last = 1 + (blocks[-1][0] + 1 if nested else len(blocks))
    head: tuple[str, ...] = ("conv_head", "bn2", "act2")
    classifier: tuple[str, ...] = ("dropout",)
    if isinstance(model, MobileNetV3):
        prefix = f"blocks.{blocks[-1][0] + 1}.0"
        head, classifier = (f"{prefix}.conv", f"{prefix}.bn1", f"{prefix}.act"), ("conv_head", "act2", "dropout")
    for layer, path in enumerate(head):
        yield f"features.{last}.{layer}", path
    yield "avgpool", "global_pool"
    for layer, path in enumerate((*classifier, "classifier")):
        yield f"classifier.{layer}", path


def _sequences(model: nn.Module) -> Names:
    """`mb_block/k/seq/j`: layer j of block k in order of execution, SE counted as one layer."""
    for flat, (_, _, path, block) in enumerate(mobile_blocks(model)):
        parts = block_parts(block)
        layers = [
            parts[role] for role in ("expand", "expand_bn", "expand_act", "dw", "dw_bn", "dw_act") if role in parts
        ]
        layers += ["se"] if block.se is not None else []
        layers += [parts["project"], parts["project_bn"]]
        yield f"mb_block.{flat}", path
        for number, layer in enumerate(layers):
            yield f"mb_block.{flat}.seq.{number}", f"{path}.{layer}"


def _squeezenet(model: SqueezeNet) -> Names:
    yield "conv1", "features.0"
    number = 2
    for index, module in enumerate(model.features.children()):
        if isinstance(module, Fire):
            yield f"fire{number}", f"features.{index}"
            number += 1
    yield "conv10", "classifier.1"
