"""How the common libraries name the layers of a model, and where other programs' names are added.

Each function yields (a library's name, module path here). The name means the first unit inside that path.
"""

from collections.abc import Iterator

from torch import nn

from conveyor import hooks
from conveyor.models.efficientnet import EfficientNet
from conveyor.models.layers.mbconv import DepthwiseSeparable, InvertedResidual
from conveyor.models.mobilenet import MobileNetV2, MobileNetV3
from conveyor.models.resnet import ResNet
from conveyor.models.squeezenet import Fire, SqueezeNet

Names = Iterator[tuple[str, str]]


def layer_names(model: nn.Module) -> Names:
    """All names for the layers of `model`; paths with `/` for every module come on top in `splits`."""
    for added in hooks.every("layer names"):
        yield from added(model)
    if isinstance(model, ResNet):
        yield from _torchvision_resnet(model)
    elif isinstance(model, EfficientNet):
        yield from _torchvision_features(model)
    elif isinstance(model, MobileNetV2 | MobileNetV3):
        yield from _torchvision_features(model)
        yield from _sequences(model)
    elif isinstance(model, SqueezeNet):
        yield from _squeezenet(model)


def resnet_blocks(model: ResNet) -> Iterator[tuple[int, int, str, nn.Module]]:
    """(stage from 1, index in the stage, path, block) of a ResNet, in order."""
    for stage, name in enumerate(model.stage_names, 1):
        for index, block in enumerate(model.get_submodule(name).children()):
            yield stage, index, f"{name}.{index}", block


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


def _torchvision_resnet(model: ResNet) -> Names:
    """torchvision shares one relu in a block: its name means the first call."""
    yield "relu", "act1"
    for _, _, path, _ in resnet_blocks(model):
        yield f"{path}.relu", f"{path}.act1"


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
