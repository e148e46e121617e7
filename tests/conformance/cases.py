"""What is run for each printed command line, and what is appended to keep it short."""

import dataclasses
import difflib

from tests.dialects.command_lines import FRAGMENT_BASES, command_of, entries

SMALL = "--image-size 32 --max-validation-images 32"
"""Image size and data limit of the ImageNet commands."""
SMALLER = "--image-size 16 --max-validation-images 32"
"""Where one update takes hundreds of images."""
TF1 = f"--updates 1 {SMALL}"
LARGE = f"--updates 1 {SMALLER}"
LARGE_UPDATES = tuple(f"tensorflow1-{number}" for number in (7, 8, 10, 11, 12, 13)) + tuple(
    f"benchmarks-{number}" for number in (3, 4, 6, 8)
)
CIFAR = "--updates 2 --max-validation-images 64"
LOCAL_HOSTS = "127.0.0.1,localhost"


@dataclasses.dataclass(frozen=True)
class Case:
    """One command line, as it is run."""

    id: str
    folder: str
    kind: str
    command: str
    appended: str = ""
    replaced: tuple[tuple[str, str], ...] = ()
    """Placeholders and foreign addresses, with what stands for them."""
    needs: str = ""
    """Another case that must have run before, since this one uses its run."""
    keeps: str = ""
    """Name under which the run folder is kept for others."""
    expects: str = ""
    """A pattern that the output must hold."""
    leaves: str = ""
    """Files that must be there afterwards, as a pattern below the folder."""
    variables: tuple[tuple[str, str], ...] = ()
    note: str = ""
    filled: str = ""
    """What had to be put in before the printed text was a command: the program before a fragment, values of placeholders."""

    @property
    def replacements(self) -> list[tuple[str, str]]:
        """What of the printed text gave way to what, in the order in which it happened."""
        command, made = self.command, list[tuple[str, str]]()
        for old, new in self.replaced:
            if old in command:
                command = command.replace(old, new)
                made.append((old, new))
        return made

    @property
    def text(self) -> str:
        command = self.command
        for old, new in self.replaced:
            command = command.replace(old, new)
        return f"{command} {self.appended}".strip()


NOT_RUN = {
    "setup": "sets up the original machine",
    "env": "sets a variable for the next command, which is run with it",
}
DATA = (
    ("path-to/imagenet", "{data}/imagenet-data"),
    (".../imagenet-data", "{data}/imagenet-data"),
    ("your_dataset_dir_path", "{data}/imagenet-data"),
    ("your_dataset_path", "{data}/imagenet-data"),
    ("datasets/imagenet-data", "{data}/imagenet-data"),
    ("--data-dir datasets/", "--data-dir {data}/"),
    ("--data-dir datasets", "--data-dir {data}"),
    ("--data-dir imagenet-data", "--data-dir {data}/imagenet-data"),
)
HOSTS = (
    ("10.1.3.0/24", "127.0.0.0/8"),
    ("10.10.0.0/16", "127.0.0.0/8"),
    ("10.1.3.101,10.1.3.102,10.1.3.103,10.1.3.104", LOCAL_HOSTS),
    (
        "10.10.19.150,10.10.19.151,10.10.19.152,10.10.19.153,10.10.20.150,10.10.20.151,10.10.20.152,10.10.20.153",
        LOCAL_HOSTS,
    ),
    ("workspace/examples/applications/tensorflow/cnns/training/", ""),
    ("python3 --config", "python3 train.py --config"),
)
SPECIAL = {
    "tensorflow1-4": {"expects": r"\d+ passed", "note": "our test of the two programs, in the place of the original's"},
    "pytorch-1": {
        "replaced": (("path-to/imagenet", "{data}/imagenet-raw-dataset"),),
        "appended": "--updates 2 --image-size 64 --max-validation-images 16",
    },
    "pytorch-2": {"appended": "--updates 1 --image-size 16 --data-dir {data}"},
    "pytorch-3": {"appended": "--updates 1 --image-size 16 --data-dir {data}"},
    "pytorch-4": {
        "replaced": (("checkpoints/resnet18_cifar10_1.pt", "{runs}/pytorch"),),
        "needs": "pytorch-checkpoints",
        "appended": "--updates 3",
    },
    "pytorch-5": {
        "appended": "",
        "replaced": (("--checkpoint-path checkpoints", "--checkpoint-path {runs}/pytorch"),),
        "needs": "pytorch-checkpoints",
        "expects": "top-1",
    },
    "tensorflow1-3": {
        "replaced": (("logs/RN20_bs32_BN_16.16_v0.9.115_3S9/", "{runs}/RN20"),),
        "needs": "tensorflow1-checkpoints",
        "appended": "--updates 4",
    },
    "tensorflow1-15": {"appended": CIFAR + " --data-dir {data}"},
    "tensorflow1-16": {"appended": CIFAR + " --data-dir {data}"},
    "tensorflow1-17": {"appended": LARGE + " --logs-path {runs}/gn", "keeps": "gn"},
    "tensorflow1-18": {
        "replaced": (("generated_checkpoints_dir_path", "{runs}/gn"),),
        "needs": "tensorflow1-17",
        "appended": SMALLER,
        "expects": "top-1",
    },
    "tensorflow1-19": {"appended": f"{LARGE} --gradient-accumulation-count 16" + " --logs-path {runs}/bn"},
    "tensorflow1-20": {
        "replaced": (("generated_checkpoints_dir_path", "{runs}/bn"),),
        "needs": "tensorflow1-19",
        "appended": SMALLER,
        "expects": "top-1",
    },
    "tensorflow1-21": {"appended": f"{LARGE} --gradient-accumulation-count 4" + " --logs-path {runs}/bn64"},
    "tensorflow1-22": {
        "replaced": (("generated_checkpoints_dir_path", "{runs}/bn64"),),
        "needs": "tensorflow1-21",
        "appended": "--updates 2 --max-validation-images 32",
    },
    "tensorflow1-25": {"appended": LARGE, "note": "both workers on this machine"},
    "tensorflow1-27": {"appended": LARGE, "note": "both workers on this machine"},
    "tensorflow1-29": {"appended": CIFAR + " --data-dir {data}", "variables": (("WANDB_MODE", "offline"),)},
    "tensorflow1-30": {"expects": "--block-survival-prob"},
    "tensorflow1-32": {"expects": "cpu|cuda|core"},
    "tensorflow1-33": {
        "leaves": "profile_dir/**/*.json",
        "appended": CIFAR,
        "variables": (("DATA_DIR", "{data}/cifar-10-batches-bin"),),
    },
    "tensorflow1-23": {"appended": f"{LARGE} --gradient-accumulation-count 2"},
    "benchmarks-1": {"appended": f"{LARGE} --gradient-accumulation-count 64"},
    "benchmarks-2": {"appended": f"{LARGE} --gradient-accumulation-count 16"},
    "tensorflow2-10": {"replaced": (("benchmarks.yml", "small.yml"),), "expects": "throughput|samples/sec"},
    "tensorflow2-11": {
        "replaced": (("benchmarks.yml", "small.yml"), ("tf2_resnet50_train_real_pod16", "small_training")),
        "expects": "throughput|samples/sec",
    },
    "tensorflow2-22": {"expects": "not possible to log 2.0 epochs", "note": "must be refused, as the text says"},
    "tensorflow2-29": {"appended": f"{LARGE} --global-batch-size 1024 --dataset-path {{data}}/imagenet-data"},
    "tensorflow2-30": {"appended": "--num-images 8 --image-size 64", "expects": "average throughput"},
}


def cases() -> list[Case]:
    """Every runnable command line, and the runs that some of them need."""
    found = [
        Case("pytorch-checkpoints", "pytorch", "help", "python3 train.py --model resnet18 --data cifar10 --batch-size 4 --epoch 1",
             "--checkpoint-path {runs}/pytorch --updates 2 --image-size 32 --max-train-images 8 --max-validation-images 16 --data-dir {data}", note="makes the checkpoints of the next two"),
        Case("tensorflow1-checkpoints", "tensorflow1", "help", "python train.py --dataset cifar-10 --batch-size 32",
             "--updates 2 --data-dir {data} --logs-path {runs}/RN20 --max-validation-images 32", note="makes the run of the next one"),
    ]  # fmt: skip
    for entry in entries():
        if entry["kind"] in NOT_RUN:
            continue
        special = {"filled": filled_in(entry), **SPECIAL.get(entry["id"], {})}
        appended = special.pop("appended", default_appended(entry))
        replaced = (*special.pop("replaced", ()), *HOSTS, *DATA)
        found.append(
            Case(entry["id"], entry["folder"], entry["kind"], command_of(entry), appended, replaced, **special)
        )
        largest = max(entry.get("variants", {}).get("--batch-size", [0]))
        if largest:
            more = f"{appended} --batch-size {largest} --max-validation-images {max(32, largest)}"
            found.append(
                Case(f"{entry['id']}b", entry["folder"], entry["kind"], command_of(entry), more, replaced, **special)
            )
    return found


def filled_in(entry: dict[str, str]) -> str:
    """In words: which words of the printed text gave way to which, and what a fragment was put behind."""
    words = [f"put behind `{FRAGMENT_BASES[entry['folder']]}`"] if entry["kind"] == "fragment" else []
    old, new = entry["printed"].split(), entry.get("filled", entry["printed"]).split()
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            gone, come = " ".join(old[a:b]), " ".join(new[c:d])
            words.append(f"filled in `{come}`" + (f" for `{gone}`" if gone else "") if come else f"left out `{gone}`")
    return ", ".join(words)


def default_appended(entry: dict[str, str]) -> str:
    if entry["kind"] in ("help", "tool", "benchmark", "serve", "restore", "test"):
        return ""
    if entry["folder"] == "tensorflow1":
        if entry["kind"] == "validate":
            return SMALL
        return LARGE if entry["id"] in LARGE_UPDATES else TF1
    if entry["folder"] == "popart":
        return CIFAR + " --data-dir {data}"
    if "--logs-per-epoch" in entry["printed"]:
        return "--max-train-images 128 --dataset-path {data}"  # all epochs, of two updates each
    return CIFAR + " --dataset-path {data}"
