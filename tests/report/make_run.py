"""A run folder with everything a report can show, made of fixed numbers."""

import json
import math
from pathlib import Path

from PIL import Image

from conveyor.monitor.observers import CsvWriter, RunFiles
from conveyor.options import Options

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SPEC = {
    "model": "resnet20", "data": "cifar10", "micro_batch": 32, "accumulation": 2, "replicas": 2, "stages": 2, "slots": 4,
    "global_batch": 128, "updates_total": 3900, "updates_per_epoch": 390, "updates_per_call": 39, "epochs": 10,
    "split_points": ["layer2.0"], "layout": "2x2", "threads": 1, "notes": ["80 images of each epoch are not used"],
    "command": "conveyor train --model resnet20 --data cifar10 --epochs 10 --micro-batch-size 32",
}  # fmt: skip


def make_run(folder: Path, *, classes: int = 10, shift: float = 0.0, mistakes: int = 12, image_side: int = 32) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    options = Options().replace(
        model="resnet20", data="cifar10", epochs=10.0, seed=int(10 * shift), run_dir=folder.name
    )
    (folder / "options.yml").write_text(options.to_yaml())
    watchers = [CsvWriter(folder), RunFiles(folder)]
    for watcher in watchers:
        watcher.start(SPEC)
    for step in range(1, 101):
        part = step / 100
        wiggle = 0.05 * math.sin(9.0 * step) * (1 - part)
        record = {
            "update": step * 39, "epoch": step / 10, "lr": 0.05 * (1 + math.cos(math.pi * part)), "loss": 0.35 + 1.9 * math.exp(-3.2 * part) + wiggle + shift / 10,
            "loss_batch": 0.4, "accuracy": 92 - 70 * math.exp(-3.4 * part) - 20 * wiggle, "accuracy_batch": 70.0,
            "images_per_second": 446 + 12 * math.sin(step) - (180 if step == 1 else 0), "update_seconds": 0.287, "seconds": step * 11.2,
            "memory_mib": 410.0 + 20 * min(step, 5), "data_wait": 0.01,
        }  # fmt: skip
        watchers[0].log(record)
    for epoch in range(1, 11):
        watchers[0].validation(
            {"name": str(epoch), "update": epoch * 390, "epoch": float(epoch), "accuracy": 90 + shift - 60 * math.exp(-0.36 * epoch),
             "accuracy_top5": 99.6 - 20 * math.exp(-0.5 * epoch), "loss": 0.4 + 1.6 * math.exp(-0.4 * epoch), "images": 10000, "seconds": 8.0, "images_per_second": 1250.0}
        )  # fmt: skip
    watchers[1].end(
        {
            "updates": 3900,
            "epochs": 10.0,
            "seconds": 1120.0,
            "images_per_second": 446.0,
            "accuracy": 88.4 + shift,
            "best_accuracy": 88.4 + shift,
            "best_update": 3900,
            "reason": "done",
        }
    )
    (folder / "timing.json").write_text(
        json.dumps(
            {"data": 11.0, "forward": 350.0, "backward": 640.0, "reduce": 55.0, "update": 24.0, "validate": 80.0}
        )
    )
    names = CLASSES if classes == 10 else [f"class {index}" for index in range(classes)]
    matrix = [
        [
            900 - 12 * t if t == p else 12 + 40 * ((t, p) in ((3, 5), (5, 3))) - (t * p) % 7 if abs(t - p) < 12 else 0
            for p in range(classes)
        ]
        for t in range(classes)
    ]
    (folder / "confusion.json").write_text(
        json.dumps({"classes": names, "matrix": [[max(0, c) for c in row] for row in matrix]})
    )
    sheet = folder / "mistakes"
    sheet.mkdir(exist_ok=True)
    entries = []
    for index in range(mistakes):
        image = Image.effect_noise((image_side, image_side), 60 + 5 * index).convert("RGB")
        hill = Image.radial_gradient("L").resize((image_side, image_side))
        Image.composite(
            image, Image.new("RGB", image.size, (30 + 15 * index % 200, 120, 200 - 12 * index % 150)), hill
        ).save(sheet / f"{index:04d}.png")
        entries.append(
            {
                "file": f"{index:04d}.png",
                "label": index % 10,
                "predicted": (index + 2) % 10,
                "confidence": 0.99 - index / 100,
                "sample": index,
            }
        )
    for entry in entries[:1]:
        entry["heat"] = [[0, 50, 100, 20]] * 4
    (sheet / "mistakes.json").write_text(json.dumps(entries))
    for name, more in (
        ("right", {"label": 3, "predicted": 3, "confidence": 0.9}),
        ("augmented", {"labels": [[3, 0.7], [5, 0.3]], "update": 3899}),
    ):
        (folder / name).mkdir(exist_ok=True)
        Image.new("RGB", (32, 32), (200, 120, 40)).save(folder / name / "0000.png")
        entry = {"file": "0000.png", "sample": 1, "heat": [[0, 100], [50, 0]], **more}
        (folder / name / f"{name}.json").write_text(json.dumps([entry]))
    bins = [[100 * m, int(80 * m * m / 15), 100 * m * (m + 0.5) / 15] for m in range(15)]
    (folder / "calibration.json").write_text(json.dumps({"update": 3900, "bins": bins}))
    (folder / "timeline-0.json").write_text(json.dumps(pipeline_spans()))
    (folder / "profile").mkdir(exist_ok=True)
    (folder / "profile" / "layers.json").write_text(json.dumps([
        {"name": f"layer{i}.0.conv1", "kind": "Conv2d", "shape": "[32, 16, 32, 32]", "calls": 4, "seconds": 0.01 / (i + 1), "share": 0.3 / (i + 1), "bytes": 2**21, "peak_bytes": 2**23} for i in range(6)
    ]))  # fmt: skip
    (folder / "profile" / "operators.json").write_text(json.dumps([
        {"name": "aten::mkldnn_convolution", "shapes": "[[32, 16, 32, 32], [16, 16, 3, 3]]", "calls": 76, "seconds": 0.4, "share": 0.55},
        {"name": "aten::native_batch_norm", "shapes": "[[32, 16, 32, 32]]", "calls": 76, "seconds": 0.1, "share": 0.15},
    ]))  # fmt: skip
    return folder


def pipeline_spans() -> list[dict[str, object]]:
    """Two updates of a two-stage GPipe schedule with four slots, in two lanes."""
    spans: list[dict[str, object]] = []
    forward, backward = 0.010, 0.021
    for update in range(2):
        origin = update * 0.2
        for lane in range(2):
            for stage in range(2):
                worker = lane * 2 + stage
                for slot in range(4):
                    start = origin + (slot + stage) * forward
                    spans.append(
                        {
                            "worker": worker,
                            "stage": stage,
                            "slot": slot,
                            "phase": "forward",
                            "start": start,
                            "end": start + forward,
                        }
                    )
                for slot in range(4):
                    start = origin + 5 * forward + (slot + 1 - stage) * backward
                    spans.append(
                        {
                            "worker": worker,
                            "stage": stage,
                            "slot": slot,
                            "phase": "backward",
                            "start": start,
                            "end": start + backward,
                        }
                    )
                end = origin + 5 * forward + 5 * backward
                spans.append(
                    {"worker": worker, "stage": stage, "slot": -1, "phase": "reduce", "start": end, "end": end + 0.012}
                )
                spans.append(
                    {
                        "worker": worker,
                        "stage": stage,
                        "slot": -1,
                        "phase": "update",
                        "start": end + 0.012,
                        "end": end + 0.02,
                    }
                )
    return spans
