"""The usual training loop: plain PyTorch, one process, all threads.

NCHW or channels_last, float32 or bfloat16 under autocast, as it is or through torch.compile.
"""

from protocol import serve, settings, unavailable


def main() -> None:
    import torch
    from torch import nn

    from conveyor.models import build

    asked = settings()
    torch.manual_seed(0)
    torch.set_num_threads(asked["threads"])
    model = with_torch_layers(build(asked["model"], num_classes=asked["classes"]))
    images = torch.randn(asked["batch"], 3, asked["image_size"], asked["image_size"])
    labels = torch.randint(0, asked["classes"], (asked["batch"],))
    if asked.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    model.train()
    half = bool(asked.get("autocast"))

    def loss_of(images, labels):  # type: ignore[no-untyped-def]
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return criterion(model(images), labels)

    if asked.get("compile"):
        loss_of = torch.compile(loss_of)

    def step() -> None:
        loss = loss_of(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    try:
        step()
    except Exception as problem:
        if not asked.get("compile"):
            raise
        unavailable(f"torch.compile: {problem}")
    serve(step, asked["batch"])


def with_torch_layers(module):  # type: ignore[no-untyped-def]
    """The same network made of torch's own layers, as the loop's author would have it.

    Our layers that differ are replaced: batch norm, the global mean (whose gradient keeps the memory format in ours)
    and the padded shortcut.
    """
    from torch import nn

    from conveyor.models.layers.layers import GlobalMean, PaddedShortcut

    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d) and type(child) is not nn.BatchNorm2d:
            setattr(module, name, nn.BatchNorm2d(child.num_features, child.eps, child.momentum))
        elif isinstance(child, GlobalMean):
            pool = nn.AdaptiveAvgPool2d(1)
            setattr(module, name, pool if child.keepdim else nn.Sequential(pool, nn.Flatten()))
        elif isinstance(child, PaddedShortcut):
            setattr(module, name, _padded(child.stride, child.out_channels - child.in_channels))
        else:
            with_torch_layers(child)
    return module


def _padded(stride, extra):  # type: ignore[no-untyped-def]
    from torch import nn

    class Padded(nn.Module):
        def forward(self, x):  # type: ignore[no-untyped-def]
            return nn.functional.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, 0, extra))

    return Padded()


if __name__ == "__main__":
    main()
