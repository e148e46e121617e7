"""More random option sets on other layouts, and runs that go on elsewhere in the middle of an epoch: equal files."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.formats.test_packed import to_parquet, to_tar
from tests.data.photos import make_folder
from tests.exact import differences
from tests.pipeline.test_exact import SPLITS, random_options, run_case
from tests.recipe_options import OPTIONS

from conveyor.data.formats import divide
from conveyor.options.data import DataOptions

LAYOUTS = ("2x1", "3x1", "1x2", "2x2")
UPDATES = 10

COMMON: dict[str, Any] = {
    "data": "digits", "stages": 4, "learning_rate": 0.01, "device": "cpu", "threads": 1, "updates": UPDATES,
    "updates_per_epoch": 4, "updates_per_log": 2, "updates_per_checkpoint": 3, "quiet": True, "max_validation_images": 70,
}  # fmt: skip

CHANCES: dict[str, list[Any]] = {
    "optimizer": ["momentum", "lars", "muon", "rmsprop", "adamw", "lamb", "torch.optim:NAdam"],
    "nesterov": [True],
    "muon_normalize": [True],
    "lars_eta": [0.02],
    "rmsprop_form": ["tensorflow", "torch"],
    "clip_norm": [0.3, 5.0],
    "weight_decay": [1e-3],
    "l2_regularization": [1e-3],
    "decay_exclude": [["norm", "bias"]],
    "lr_factors": [["norm:0.5", "bias:2"]],
    "lr_schedule": ["cosine", "stepped", "polynomial", "exponential"],
    "warmup": ["3up"],
    "label_smoothing": [0.1],
    "ema_decay": [0.8],
    "ema_warmup": ["3up"],
    "average_last": [[2]],
    "average_decay": [[0.7]],
    "progressive_image_size": [["0:12", "1:16"]],
    "augment": ["randaugment", "trivialaugment"],
    "color_jitter": [[0.4], [0.4, 0.3, 0.2, 0.1]],
    "random_erasing": [0.5],
    "repeated_augmentation": [2, 3],
    "balanced_sampling": [True],
    "loss": ["bce"],
    "bce_threshold": [0.2],
    "task": ["multi-label"],
    "teacher": ["the run of the fixture"],
    "distillation": ["hard"],
    "teacher_temperature": [2.0],
    "teacher_share": [0.3],
    "focal_gamma": [1.5],
    "class_weights": ["balanced"],
    "mix_switch": [True],
    "mixup_alpha": [0.3],
    "cutmix_lambda": [0.6],
    "mix_on": ["host"],
    "eight_bit_io": [False],
    "shuffle": ["none"],
    "weight_histograms": [True],
    "stable_norm": [True],
    "validation_views": ["mirror", "mirror-shift"],
    "validation_batch_size": [9, 32],
    "epochs_per_validation": [2],
    "pipelined_validation": [True],
    "bucket_size": ["4KiB", "64KiB"],
    "checkpoint_at_start": [True],
    "fp_exceptions": [True],
    "disable_metrics": [True],
    "prefetch": [1],
    "loader_threads": [1, 3],
}

NAMED = ("folder", "list", "tar", "parquet")
"""Forms of a set whose images have names, for --data-dir."""
ASKED: dict[str, list[Any]] = {
    "augment_magnitude": [21.0],
    "augment_operations": [1, 3],
    "cutmix_lambda_high": [0.9],
    "cutmix_skip_probability": [0.5],
    "layer_decay": [0.75],
    "best_by": ["loss", "f1", "ece"],
    "exclude_images": ["two of them"],
    "hold_out": [0.3],
}


def asked_options(number: int, options: dict[str, Any]) -> dict[str, Any]:
    """What a set has besides: other images, which of them, and finer settings; by a generator of its own."""
    draw = random.Random(f"asked-{number}")
    more = {name: draw.choice(values) for name, values in ASKED.items() if draw.random() < 0.25}
    if ":" in options.get("optimizer", ""):
        more["optimizer_arguments"] = ["momentum_decay=0.01"]
    if draw.random() < 0.4:
        more |= {"folds": 3, "fold": draw.randrange(3)}
    if "teacher" not in options and draw.random() < 0.5:
        form = "list" if options.get("task") == "multi-label" else draw.choice(NAMED)
        more |= {"data": "folder", "data_dir": form}
        if draw.random() < 0.5:
            more["group_by"] = r"([0-9])(\.[jpJP]|$)"
    return options | more


def further_options(number: int) -> dict[str, Any]:
    """One of the option sets; the same number gives the same set."""
    draw = random.Random(f"further-{number}")
    cifar = draw.random() < 0.6
    other = draw.choice(["efficientnet_cifar", "mobilenet_v2"])
    options = {
        **COMMON,
        "model": draw.choice(["cifar_resnet8", "cifar_bottleneck11"]) if cifar else other,
        "norm": draw.choice(["batch", "batch", "group", "proxy"]) if cifar or other != "mobilenet_v2" else "batch",
        "norm_groups": 4,
        "image_size": 16,
        "micro_batch_size": draw.choice([2, 4, 5]),
        "accumulation": draw.choice([4, 5, 6]),
        "pipeline_schedule": draw.choice(["gpipe", "1f1b", "sequential", "interleaved-1f1b", "looped-bfs"]),
        "precision": draw.choice(["32.32", "32.32", "16.32", "16.16"]),
        "tensorboard": draw.random() < 0.5,
        "seed": number,
    }
    if options["precision"] != "32.32":
        options |= {
            "half_type": draw.choice(["float16", "bfloat16"]),
            "stochastic_rounding": draw.choice(["off", "weights", "all"]),
            "loss_scale": draw.choice(["64", "auto", "histogram", "16..128"]),
            "saturate": draw.random() < 0.3,
            "half_partials": draw.random() < 0.3,
        }
    options |= {name: draw.choice(values) for name, values in CHANCES.items() if draw.random() < 0.25}
    if options.get("optimizer", "momentum") != "momentum":
        options.pop("nesterov", None)
    if options["precision"] == "16.16" and ":" in options.get("optimizer", ""):
        options["optimizer"] = "adamw"
    if ":" in options.get("optimizer", ""):
        for name in ("muon_normalize", "lars_eta", "rmsprop_form"):
            options.pop(name, None)
    if options.get("balanced_sampling"):
        options.pop("repeated_augmentation", None)
    if options.get("task") == "multi-label":
        for name in ("label_smoothing", "balanced_sampling", "teacher"):
            options.pop(name, None)
    if cifar:
        options["splits"] = draw.choice(SPLITS)
        if draw.random() < 0.3:
            options |= {"train_only": ["layer3", "fc"], "frozen_norms": draw.random() < 0.5}
        if draw.random() < 0.3:
            options["survival"] = 0.6
    else:
        options |= {"survival": 0.7, "dropout": 0.3}
        options |= (
            {"squeeze_excite": draw.random() < 0.7} if other == "efficientnet_cifar" else {"width_coefficient": 0.25}
        )
        if other == "mobilenet_v2":
            options["clip_norm"] = 0.3  # its deep norms see few values here, and their gradients end a run
    if draw.random() < 0.3:
        options["recompute"] = draw.choice([["block"], ["stage"]]) if cifar or other != "mobilenet_v2" else ["features"]
    return asked_options(number, options)


def write_labels(folder: Path) -> Path:
    """Images whose bright squares say which of three classes they have, in a list; some have none, some all."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    lines = ["path,labels,split"]
    for number in range(60):
        image = draw.integers(0, 60, (12, 12, 3)).astype(np.uint8)
        present = [place for place in range(3) if draw.random() < 0.4]
        for place in present:
            image[2 * place : 2 * place + 6, 3:9, place] = 230
        Image.fromarray(image).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{';'.join('abc'[one] for one in present)},{'val' if number >= 40 else 'train'}")
    (folder / "images.csv").write_text("\n".join(lines))
    return folder / "images.csv"


def write_named(folder: Path, form: str, *, several: bool) -> Path:
    """Images of two classes in a form of `NAMED`; with `several`, a list where they have any number of three."""
    if several:
        return write_labels(folder / "labels")
    make_folder(folder / "photos", train=20, validation=6)
    if form in ("tar", "parquet"):
        return (to_tar if form == "tar" else to_parquet)(folder / "photos", folder / form)
    if form == "list":
        found = sorted((folder / "photos").rglob("*.JPEG"))
        lines = [f"{path},{path.parent.name},{path.parent.parent.name},{path.stem}" for path in found]
        (folder / "all.csv").write_text("\n".join(["path,label,split,group", *lines]))
        return folder / "all.csv"
    return folder / "photos"


def run(pool: Any, text: str, layout: str, folder: Path) -> Path:
    lanes, depth = (int(part) for part in layout.split("x"))
    pool.run(run_case, lanes * depth, text=text, lanes=lanes, depth=depth, folder=str(folder))
    return folder


class Whole:
    """The runs of sets on one worker, and the teacher of those that have one."""

    def __init__(self, pool: Any, folders: pytest.TempPathFactory) -> None:
        self._pool, self._folders = pool, folders
        self._made: dict[str, Path] = {}

    def __call__(self, number: int) -> Path:
        return self._run(f"further{number}", json.dumps(self.options(number)))

    def options(self, number: int) -> dict[str, Any]:
        options = further_options(number)
        if "teacher" in options:
            taught = {**RECIPE, "image_size": 16, "updates": 2, "seed": 5}
            options["teacher"] = str(self._run("teacher", json.dumps(taught)))
        if options["data"] == "folder":
            several = options.get("task") == "multi-label"
            options["data_dir"] = str(self._named(options["data_dir"], several=several))
        if "exclude_images" in options:
            options["exclude_images"] = str(self._excluded(options))
        return options

    def _named(self, form: str, *, several: bool) -> Path:
        name = f"{form}-{several}"
        if name not in self._made:
            self._made[name] = write_named(self._folders.mktemp(name), form, several=several)
        return self._made[name]

    def _excluded(self, options: dict[str, Any]) -> Path:
        """A file with the names of two images."""
        names = ["train/3", "train/17"]
        if options["data"] == "folder":
            found = divide.listing(Path(options["data_dir"]), DataOptions(), 0.1)
            names = [name for name, _ in found.files["train"][4:6]]
        name = f"excluded-{options['data']}-{Path(options.get('data_dir', '')).name}"
        if name not in self._made:  # a run that goes on takes the same file only
            self._made[name] = self._folders.mktemp(name) / "names.txt"
            self._made[name].write_text("\n".join(names))
        return self._made[name]

    def _run(self, name: str, text: str) -> Path:
        if name not in self._made:
            self._made[name] = run(self._pool, text, "1x1", self._folders.mktemp(name) / "1x1")
        return self._made[name]


@pytest.fixture(scope="module")
def whole(pool: Any, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(pool, tmp_path_factory)


def check(pool: Any, whole: Whole, number: int, layout: str, folder: Path) -> None:
    text = json.dumps(whole.options(number))
    assert differences(run(pool, text, layout, folder / layout), whole(number)) == [], text


def check_resumed(pool: Any, whole: Whole, number: int, layout: str, folder: Path) -> None:
    """The run goes on from update 3, in the middle of the first epoch, or 6, in that of the second."""
    text = json.dumps({**whole.options(number), "resume": "auto"})
    begun = Path(shutil.copytree(whole(number), folder / "begun"))
    for path in (begun / "checkpoints").iterdir():
        if not path.name.isdigit() or int(path.name) > 3 * (1 + number % 2):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert (begun / "checkpoints" / "3").exists()
    (begun / "result.json").unlink()
    assert differences(run(pool, text, layout, begun), whole(number)) == [], text


def test_every_option_of_the_recipes_is_drawn() -> None:
    """By the sets that are run; --answers writes a file, and changes nothing."""
    sets = [further_options(number) for number in range(25)] + [random_options(number) for number in range(25)]
    drawn = {name for options in sets for name in options}
    assert {name for names in OPTIONS.values() for name in names} - drawn == {"answers"}
    assert {one["data_dir"] for one in sets if "data_dir" in one} == set(NAMED)


@pytest.mark.parametrize("layout", ["2x1", "1x2"])
def test_further_options(pool: Any, whole: Any, layout: str, tmp_path: Path) -> None:
    check(pool, whole, 0, layout, tmp_path)


def test_a_run_goes_on_elsewhere_in_the_middle_of_an_epoch(pool: Any, whole: Any, tmp_path: Path) -> None:
    check_resumed(pool, whole, 0, "2x2", tmp_path)


def test_a_pipeline_looks_at_every_layer(pool: Any, tmp_path: Path) -> None:
    small = {"model": "cifar_resnet8", "image_size": 8, "micro_batch_size": 2, "accumulation": 4, "fp_exceptions": True}
    text = json.dumps({**COMMON, **small, "updates": 2, "tensorboard": False, "updates_per_checkpoint": 1})
    assert differences(run(pool, text, "1x2", tmp_path / "1x2"), run(pool, text, "1x1", tmp_path / "1x1")) == []


RECIPE: dict[str, Any] = {
    **COMMON, "model": "cifar_resnet8", "image_size": 8, "micro_batch_size": 4, "accumulation": 4, "updates": 4, "survival": 0.7,
    "updates_per_checkpoint": 2, "tensorboard": False, "learning_rate": 0.01, "ema_decay": 0.9, "ema_warmup": "2up",
}  # fmt: skip
RECIPES: dict[str, dict[str, Any]] = {
    "lamb": {
        "optimizer": "lamb", "weight_decay": 0.02, "clip_norm": 1.0, "loss": "bce", "bce_threshold": 0.2, "mixup_alpha": 0.2,
        "cutmix_lambda": 0.0, "cutmix_lambda_high": 1.0, "cutmix_skip_probability": 0.5, "mix_switch": True,
        "repeated_augmentation": 3, "augment": "trivialaugment", "random_erasing": 0.5,
    },
    "foreign": {
        "optimizer": "torch.optim:NAdam", "weight_decay": 0.01, "balanced_sampling": True, "class_weights": "balanced",
        "color_jitter": [0.4, 0.3, 0.2, 0.1], "focal_gamma": 2.0, "flip": "random", "train_crop": "pad",
    },
    "soft": {"teacher_temperature": 3.0, "augment": "randaugment", "mixup_alpha": 0.3},
    "labels": {"task": "multi-label", "class_weights": "balanced", "focal_gamma": 1.0, "mixup_alpha": 0.3, "cutmix_lambda": 0.6},
    "hard": {"distillation": "hard", "teacher_share": 0.8, "updates_per_epoch": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_the_ingredients_of_recipes(pool: Any, name: str, tmp_path: Path) -> None:
    """Two layouts, and a run that goes on from its middle; a teacher's answers are kept where the images never change."""
    options = {**RECIPE, **RECIPES[name]}
    if name in ("soft", "hard"):
        taught = {**RECIPE, "updates": 2, "seed": 5}
        options["teacher"] = str(run(pool, json.dumps(taught), "1x1", tmp_path / "teacher"))
    if name == "labels":
        options |= {"data": "folder", "data_dir": str(write_labels(tmp_path / "images"))}
    text = json.dumps(options)
    expected = run(pool, text, "1x1", tmp_path / "1x1")
    for layout in ("2x1", "1x2"):
        assert differences(run(pool, text, layout, tmp_path / layout), expected) == [], layout
    begun = Path(shutil.copytree(expected, tmp_path / "begun"))
    shutil.rmtree(begun / "checkpoints" / "4")
    (begun / "result.json").unlink()
    for path in (begun / "checkpoints").iterdir():
        if not path.name.isdigit():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = json.dumps({**options, "resume": "auto"})
    assert differences(run(pool, again, "1x1", begun), expected) == []


@pytest.mark.conformance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(1, 25))
def test_many_further_options(pool: Any, whole: Any, number: int, tmp_path: Path) -> None:
    for layout in LAYOUTS:
        check(pool, whole, number, layout, tmp_path)
    check_resumed(pool, whole, number, LAYOUTS[number % len(LAYOUTS)], tmp_path)
