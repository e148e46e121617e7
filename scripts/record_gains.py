"""What each ingredient of a recipe gains or costs on CIFAR-10 at a small budget: benchmarks/gains.json and its table.

    python scripts/record_gains.py --data-dir DIR [--out runs/gains] [--seeds 3] [--only NAME ...] [--table]

Every ingredient is added alone to one baseline and trained with the same seeds, so each difference is between two runs
with equal initial weights and order of images. Runs that are there are not made again, so it may be stopped and started.
The table goes between two marks of docs/recipes.md.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import conveyor
from conveyor.bench.records import machine
from conveyor.files import write_atomically
from conveyor.measure.paired import mean_and_deviation, probability_better

HERE = Path(__file__).resolve().parent.parent
RECORD, PAGE = HERE / "benchmarks" / "gains.json", HERE / "docs" / "recipes.md"
MARKS = "<!-- gains: scripts/record_gains.py -->\n", "<!-- end of gains -->\n"
BASE: dict[str, Any] = {
    "data": "cifar10", "model": "cifar_resnet8", "max_train_images": 12800, "micro_batch_size": 128, "epochs": 5,
    "optimizer": "momentum", "nesterov": True, "learning_rate": 0.2, "l2_regularization": 5e-4, "warmup": "1ep",
    "lr_schedule": "cosine", "layout": "1x1", "threads": 1, "report": False, "quiet": True,
    "epochs_per_validation": 5, "checkpoints_to_keep": 1, "tensorboard": False,
}  # fmt: skip
INGREDIENTS: dict[str, dict[str, Any]] = {
    "baseline: crop, flip, momentum, cosine": {},
    "without crop and flip": {"train_crop": "none", "flip": "none"},
    "random erasing 0.25": {"random_erasing": 0.25},
    "repeated augmentation 2": {"repeated_augmentation": 2},
    "mixup 0.2": {"mixup_alpha": 0.2},
    "cutmix, half of the batches": {"cutmix_lambda": 0.0, "cutmix_lambda_high": 1.0, "cutmix_skip_probability": 0.5},
    "label smoothing 0.1": {"label_smoothing": 0.1},
    "binary cross entropy, same rate": {"loss": "bce"},
    "focal, gamma 2": {"focal_gamma": 2.0},
    "class weights balanced": {"class_weights": "balanced"},
    "balanced sampling": {"balanced_sampling": True},
    "stochastic depth 0.9": {"survival": 0.9},
    "average of the weights, 0.99": {"ema_decay": 0.99},
    "clipping at 1": {"clip_norm": 1.0},
    "constant rate": {"lr_schedule": "constant"},
    "no warm-up": {"warmup": "0ep"},
    "growing images, 16 to 32": {"progressive_image_size": ["0:16", "1:24", "3:32"]},
    "distillation from ResNet-20": {"teacher": "TEACHER", "teacher_temperature": 4.0},
    "AdamW, 0.004": {
        "optimizer": "adamw",
        "nesterov": False,
        "learning_rate": 0.004,
        "l2_regularization": 0.0,
        "weight_decay": 0.05,
    },
    "LAMB, 0.02": {
        "optimizer": "lamb",
        "nesterov": False,
        "learning_rate": 0.02,
        "l2_regularization": 0.0,
        "weight_decay": 0.02,
    },
    "Muon, 0.02": {"optimizer": "muon", "nesterov": False, "learning_rate": 0.02, "l2_regularization": 0.0},
    "NAdam of torch, 0.004": {
        "optimizer": "torch.optim:NAdam",
        "nesterov": False,
        "learning_rate": 0.004,
        "l2_regularization": 0.0,
    },
    "colour jitter 0.4": {"color_jitter": [0.4]},
    "TrivialAugment": {"augment": "trivialaugment"},
    "RandAugment, 2 of 9": {"augment": "randaugment", "augment_magnitude": 9.0},
}
"""Added to the baseline one at a time; what goes with each is part of it (rates of the optimisers, no L2 beside a decay)."""
TEACHER = {**BASE, "model": "cifar_resnet20"}


def trained(folder: Path, options: dict[str, Any]) -> dict[str, float]:
    """Accuracy of the last validation and processor seconds of a run; made if it is not there."""
    kept = folder.with_suffix(".json")
    if not kept.exists():
        started = time.process_time()
        run = conveyor.train(**options, run_dir=str(folder), resume="auto")
        if run.reason != "done":
            raise SystemExit(f"{folder}: {run.reason}")
        found = {"accuracy": run.validation[-1]["accuracy"], "seconds": time.process_time() - started}
        write_atomically(kept, json.dumps(found))
        print(f"{folder.name}: {found['accuracy']:.2f} %, {found['seconds']:.0f} s of processor time", flush=True)
    return json.loads(kept.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def table(results: dict[str, list[dict[str, float]]]) -> list[str]:
    """Markdown: accuracy, its paired difference to the baseline, how sure it is, and the processor time."""
    rows, base = [], next(iter(results.values()))
    for name, runs in results.items():
        mean, deviation = mean_and_deviation([run["accuracy"] for run in runs])
        apart = [run["accuracy"] - other["accuracy"] for run, other in zip(runs, base, strict=False)]
        gain, spread = mean_and_deviation(apart)
        sure = probability_better(apart)
        time_ratio = sum(run["seconds"] for run in runs) / sum(run["seconds"] for run in base[: len(runs)])
        shown = ("", "", "") if runs is base else (
            f"{gain:+.2f} ± {spread or 0:.2f}", ", ".join(f"{one:+.2f}" for one in apart), f"{100 * (sure or 0):.0f} %"
        )  # fmt: skip
        rows.append(
            (
                gain if runs is not base else 1e9,
                (name, f"{mean:.2f} ± {deviation or 0:.2f}", *shown, f"{time_ratio:.2f}"),
            )
        )
    titles = ("added to the baseline", "accuracy, %", "gain", "by seed", "better, how sure", "processor time")
    ordered = [row for _, row in sorted(rows, key=lambda pair: -pair[0])]
    return ["| " + " | ".join(cells) + " |" for cells in (titles, ("---",) * 6, *ordered)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="Folder of cifar-10-batches-bin.")
    parser.add_argument("--out", type=Path, default=Path("runs/gains"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="Words of the ingredients to train; the table is not written.")
    parser.add_argument("--table", action="store_true", help="Train nothing: the table of what is there.")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    base = {**BASE, "data_dir": given.data_dir}
    results: dict[str, list[dict[str, float]]] = {}
    for number, (name, extra) in enumerate(INGREDIENTS.items()):
        if given.only and not any(word in name for word in given.only):
            continue
        folders = [given.out / f"{number:02d}-{seed}" for seed in range(given.seeds)]
        if given.table and not all(one.with_suffix(".json").exists() for one in folders):
            continue
        options = {**base, **extra}
        if "teacher" in extra and not given.table:
            trained(given.out / "teacher", {**base, **TEACHER, "seed": 100})
            options["teacher"] = str(given.out / "teacher")
        results[name] = [trained(one, {**options, "seed": seed}) for seed, one in enumerate(folders)]
    if given.only:
        return
    lines = table(results)
    written = {"baseline": BASE, "ingredients": INGREDIENTS, "results": results, "machine": machine()}
    write_atomically(RECORD, json.dumps(written, indent=1) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    write_atomically(PAGE, "".join([before, MARKS[0], "\n".join(lines), "\n", MARKS[1], rest.split(MARKS[1])[1]]))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
