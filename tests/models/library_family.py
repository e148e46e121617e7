"""Runs where timm and torchvision are: `python library_family.py FOLDER MODEL`: trains, validates, cuts, restores, recomputes, exports, serves.

FOLDER holds `photos`. What happened is printed as one JSON object on the last line.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import conveyor
from conveyor import cli, models
from conveyor.errors import UserError
from conveyor.infer.export import export
from conveyor.infer.load import load


def final(run: Any) -> dict[str, torch.Tensor]:
    (newest,) = sorted((run.folder / "checkpoints").glob("[0-9]*"), key=lambda one: int(one.name))[-1:]
    return load_file(newest / "model.safetensors")


def same(first: Any, second: Any) -> bool:
    ours, theirs = final(first), final(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def main(folder: Path, model: str) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": model, "data_dir": str(folder / "photos"), "image_size": 64, "micro_batch_size": 4, "accumulation": 2,
        "epochs": 2, "optimizer": "sgd", "learning_rate": 0.01, "layout": "1x1", "threads": 1, "quiet": True,
        "validation": False,
    }  # fmt: skip
    name = model.replace("/", "-")
    whole = conveyor.train(**{**asked, "validation": True}, run_dir=folder / name)
    told: dict[str, Any] = {"updates": whole.updates, "finite": all(row["loss"] < 1e9 for row in whole.metrics)}
    told["validated"] = whole.validation[-1]["images"]
    try:
        told["cut"] = same(
            whole, conveyor.train(**{**asked, "layout": "1x2", "stages": 2}, run_dir=folder / f"{name}-cut")
        )
    except UserError as error:
        told["cut"] = str(error)
    middle = min((whole.folder / "checkpoints").glob("[0-9]*"), key=lambda one: int(one.name))
    told["restored"] = same(
        whole, conveyor.train(**asked, checkpoint_path=str(middle), run_dir=folder / f"{name}-restored")
    )
    blocks = models.blocks(models.build(model, num_classes=3))
    again = {**asked, "recompute": ["block" if blocks else "features"]}
    told["recomputed"] = same(whole, conveyor.train(**again, run_dir=folder / f"{name}-recomputed"))
    loaded = load(whole.folder)
    forms = [export(loaded, folder / f"{name}-{form}", form) for form in ("onnx", "torch")]
    told["difference"] = max(one.comparison.relative for one in forms)
    photo = min((folder / "photos").rglob("*.png"))
    first, second = (conveyor.load(place).predict(photo) for place in (whole.folder, forms[1].folder))
    told["predicted"] = max(
        abs(first.probabilities[label] - second.probabilities[label]) for label in first.probabilities
    )
    with contextlib.redirect_stdout(io.StringIO()) as answer:
        cli.main(["request", str(forms[0].folder), str(photo), "--json"])
    told["served"] = json.loads(answer.getvalue())[0]["best"][0]["label"] == first.label
    return told


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
