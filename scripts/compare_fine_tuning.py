"""Fine-tuning by default beside plain PyTorch loops and timm's script: same weights, photographs, epochs and image size.

    python scripts/compare_fine_tuning.py WEIGHTS CIFAR OUT --train-py pytorch-image-models/train.py

WEIGHTS are EfficientNet-Lite0's, CIFAR is the folder of CIFAR-10's binary files, OUT a folder for photographs and runs;
where OUT/photos is there already (`train` and `val`, a folder per class), those are used. timm and torchvision must be
installed: the loops use timm's network. `--train-py` is the script in a checkout of timm. Accuracy is that of the last epoch
on images that are not trained on; with the same images for all, differences between recipes are less uncertain than the
figures: at the end each recipe is paired with the first, seed by seed.
"""

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import create_transform
from timm.optim import create_optimizer_v2
from torch import nn
from torch.nn import functional

from conveyor import models
from conveyor.models.weights import load_weights

NAME, BATCH = "tf_efficientnet_lite0", 32
OURS: dict[str, str] = {"conveyor": "", "conveyor warmup 5%": "--warmup 5%", "conveyor warmup 20%": "--warmup 20%"}
"""Options beside the defaults."""
LOOPS: dict[str, dict[str, Any]] = {
    "plain sgd 0.01": {"opt": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4},
    "plain adamw 5e-4": {"opt": "adamw", "lr": 5e-4, "weight_decay": 0.01},
    "plain adamw 1e-3": {"opt": "adamw", "lr": 1e-3, "weight_decay": 0.01},
}
"""Cosine to zero, no warm-up, crops of at least a quarter of the image, mirrored; the head is `nn.Linear` as it starts."""
SCRIPTS: dict[str, str] = {
    "timm adamw 5e-4": "--opt adamw --lr 5e-4 --weight-decay 0.05 --drop 0.2",
    "timm sgd 0.01": "--opt sgd --lr 0.01 --weight-decay 2e-5 --drop 0.2",
    "timm gentle 1e-3": "--opt adamw --lr 1e-3 --weight-decay 0.01 --scale 0.25 1 --color-jitter 0 --smoothing 0"
    " --train-interpolation bicubic --head-init-scale 0.1",
}
"""Options of timm's `train.py`. The first two: a rate that suits fine-tuning, all else as the script has it (crops of at least
8 %, colour jitter 0.4, smoothing 0.1, a head that starts at 1/sqrt(classes)) but for the warm-up, which is one epoch of its
five. `gentle`: the crops, smoothing and start of the head of our defaults."""


def make_photographs(cifar: Path, out: Path, counts: dict[str, int]) -> None:
    """`out/train/CLASS` and `out/val/CLASS`: the first images of each class, as JPEG of 160 pixels."""
    names = (cifar / "batches.meta.txt").read_text().split()
    for (split, count), file in zip(counts.items(), ("data_batch_1.bin", "test_batch.bin"), strict=True):
        records = np.fromfile(cifar / file, np.uint8).reshape(-1, 3073)
        for number, name in enumerate(names):
            (out / split / name).mkdir(parents=True, exist_ok=True)
            for index, record in enumerate(records[records[:, 0] == number][:count]):
                image = Image.fromarray(np.ascontiguousarray(record[1:].reshape(3, 32, 32).transpose(1, 2, 0)))
                image.resize((160, 160), Image.Resampling.BICUBIC).save(out / split / name / f"{index}.jpg", quality=92)


def read(folder: Path) -> list[tuple[Image.Image, int]]:
    classes = sorted(folder.iterdir())
    return [(Image.open(file).convert("RGB"), n) for n, one in enumerate(classes) for file in sorted(one.iterdir())]


def loop(recipe: str, out: Path, size: int, epochs: int, seed: int) -> float:
    """Top-1 accuracy after training as `LOOPS[recipe]` says."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    settings = LOOPS[recipe]
    train, validation = read(out / "photos" / "train"), read(out / "photos" / "val")
    network = timm.create_model(NAME, num_classes=10, bn_momentum=0.1)
    state = load_file(out / f"{NAME}.safetensors")
    network.load_state_dict({k: v for k, v in state.items() if not k.startswith("classifier")}, strict=False)
    network.classifier = nn.Linear(network.classifier.in_features, 10)
    network = network.to(memory_format=torch.channels_last)
    look = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic"}
    augment = create_transform(size, is_training=True, **look, scale=(0.25, 1.0), color_jitter=None)
    prepare = create_transform(size, crop_pct=0.875, **look)
    optimizer = create_optimizer_v2(network, **settings)
    total, done = epochs * (len(train) // BATCH), 0
    for _ in range(epochs):
        order = torch.randperm(len(train)).tolist()
        network.train()
        for start in range(0, len(train) - BATCH + 1, BATCH):
            for group in optimizer.param_groups:
                group["lr"] = settings["lr"] * (1 + math.cos(math.pi * done / total)) / 2
            chosen = [train[i] for i in order[start : start + BATCH]]
            images, labels = torch.stack([augment(i) for i, _ in chosen]), torch.tensor([n for _, n in chosen])
            given = network(images.contiguous(memory_format=torch.channels_last))
            optimizer.zero_grad()
            functional.cross_entropy(given, labels).backward()
            optimizer.step()
            done += 1
    network.eval()
    hits = 0
    with torch.inference_mode():
        for start in range(0, len(validation), 100):
            some = validation[start : start + 100]
            found = network(torch.stack([prepare(i) for i, _ in some])).argmax(1)
            hits += int((found == torch.tensor([n for _, n in some])).sum())
    return 100 * hits / len(validation)


def script(recipe: str, train_py: Path, out: Path, size: int, epochs: int, seed: int) -> float:
    """Top-1 accuracy of the last epoch of timm's own training script."""
    name = f"{recipe.replace(' ', '-')}-{seed}"
    words = (
        f"{SCRIPTS[recipe]} --model {NAME} --pretrained --pretrained-path {out / NAME}.safetensors --num-classes 10 "
    )
    words += (
        f"--input-size 3 {size} {size} --crop-pct 0.875 --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 --interpolation bicubic "
    )
    words += f"--bn-momentum 0.1 -b {BATCH} --epochs {epochs} --sched cosine --warmup-epochs 1 --warmup-lr 1e-6 "
    words += "--sched-on-updates --device cpu --no-prefetcher -j 1 --channels-last --train-split train --val-split val "
    words += f"--seed {seed} --output {out} --experiment {name} --checkpoint-hist 1 --val-interval {epochs}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, train_py.name, str((out / "photos").absolute()), *words.split()]
    subprocess.run(command, cwd=train_py.parent, check=True, env=environment, stderr=subprocess.DEVNULL)
    rows = list(csv.DictReader((out / name / "summary.csv").open()))
    return float(rows[-1]["eval_top1"])


def ours(recipe: str, out: Path, size: int, epochs: int, seed: int) -> float:
    """Top-1 accuracy of `conveyor train --data-dir photos --pretrained tf_efficientnet_lite0`."""
    run = out / f"{recipe.replace(' ', '-')}-{seed}"
    words = f"train --data-dir {out / 'photos'} --pretrained {NAME} --weights-dir {out} --image-size {size} --epochs {epochs} "
    words += (
        f"--seed {seed} --run-dir {run} --epochs-per-validation {epochs} --no-report --threads 1 --layout 1x1 --quiet"
    )
    subprocess.run([sys.executable, "-m", "conveyor", *words.split(), *OURS[recipe].split()], check=True)
    return float(json.loads((run / "result.json").read_text())["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("cifar", type=Path)
    parser.add_argument("out", type=Path)
    for name, value in (
        ("per-class", 60),
        ("validation", 100),
        ("image-size", 128),
        ("epochs", 5),
        ("seeds", 3),
        ("first-seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", nargs="*", default=[], help="recipes by name; default: all")
    parser.add_argument("--train-py", type=Path, help="timm's training script; without it those recipes are left out")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    out = asked.out.absolute()
    if not (out / "photos").exists():
        make_photographs(asked.cifar, out / "photos", {"train": asked.per_class, "val": asked.validation})
    network = models.build("efficientnet_lite0", padding="same", norm_epsilon=1e-3)
    load_weights(network, asked.weights)
    save_file(network.state_dict(), out / f"{NAME}.safetensors")
    all_recipes = (*OURS, *LOOPS, *(SCRIPTS if asked.train_py else ()))
    found: dict[str, list[float]] = {name: [] for name in all_recipes if name in asked.only or not asked.only}
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for recipe, figures in found.items():
            start, length = time.monotonic(), (out, asked.image_size, asked.epochs, seed)
            if recipe in SCRIPTS:
                figures.append(script(recipe, asked.train_py, *length))
            else:
                figures.append(ours(recipe, *length) if recipe in OURS else loop(recipe, *length))
            print(f"seed {seed} {recipe}: {figures[-1]:.2f} %, {time.monotonic() - start:.0f} s", flush=True)
    first = next(iter(found.values()))
    for recipe, figures in found.items():
        print(f"{recipe}: mean {statistics.mean(figures):.2f} % of {figures}")
        apart = [one - other for one, other in zip(figures, first, strict=True)]
        if len(apart) > 1 and figures is not first:
            error = statistics.stdev(apart) / math.sqrt(len(apart))
            print(f"  {statistics.mean(apart):+.2f} points beside the first, standard error {error:.2f}: {apart}")


if __name__ == "__main__":
    main()
