"""Runs in an environment with timm: `python timm_weights.py FOLDER NAME...` writes weights as the hub has them, and answers.

Each NAME gets a folder with model.safetensors, config.json and `expected.pt` (images x, logits y). The statistics of the
norms are drawn small, so that their epsilon shows in the answers.
"""

import json
import sys
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file


def write(folder: Path, name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name.split(".")[0]).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(1e-3, 0.05)
            module.weight.data.uniform_(0.05, 0.25)
    stated = timm.models.get_pretrained_cfg(name).to_dict()
    plain = {key: value for key, value in stated.items() if isinstance(value, int | float | str | list | tuple)}
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architecture": name.split(".")[0], "pretrained_cfg": plain}))
    x = torch.randn(2, *stated["input_size"], generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.save({"x": x, "y": model(x)}, folder / "expected.pt")


for one in sys.argv[2:]:
    write(Path(sys.argv[1]) / one, one)
