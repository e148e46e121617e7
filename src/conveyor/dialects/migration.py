"""The migration tables: every option of every dialect and what it is here, as Markdown for docs/migration.md."""

from conveyor.dialects.scripts import DIALECTS
from conveyor.dialects.table import Row

TITLES = {
    "tensorflow1": "TensorFlow 1",
    "tensorflow2": "TensorFlow 2",
    "pytorch": "PyTorch",
    "popart": "PopART",
}
RULES = {
    "tensorflow1": (
        "`--base-learning-rate` is an exponent: the rate is 2^value times the global batch. Here the rate is written out with `--lr-reference-batch 1`.",
        "`--weight-decay` is L2 in the gradient, without norms on ImageNet: `--l2-regularization`, `--decay-exclude norm`.",
        "Epochs are counted in images (`--epochs-by-images`): updates in all = images x epochs // global batch.",
        "The rate follows its formula at every update; the original held it still between two returns to the host (and made one drop there at most), which `--lr-every 97up`, say, repeats.",
        "Under `poprun` the launcher's total of replicas holds; with `--distributed` those of one worker times the workers of TF_CONFIG.",
        "`--iterations N` runs N updates; the original rounded up to its log period. Without `--epochs` there is no warm-up.",
        "Checkpoints are validated after training; stages become replicas in validation.",
    ),
    "tensorflow2": (
        "`initial_learning_rate` is per sample of the global batch (`--lr-reference-batch 1`); the values of the stepped schedule are absolute.",
        "`--weight-decay` is decoupled, `--l2-regularization` is in the gradient; both act on all weights.",
        "Frequencies that do not fit into whole updates become the closest possible ones, with a note.",
        "A host call lasts as long as the log and the checkpoint period have in common. A checkpoint is written every epoch by default, so `--logs-per-epoch 1/2` makes longer calls only with `--ckpts-per-epoch 1/2`; a note says so.",
        "After training all checkpoints of the run are validated.",
        "The loss is computed from logits; the original cuts probabilities to 1e-7 .. 1 - 1e-7 first, so that a sample with a true class below 1e-7 has a loss of 16.1 there and teaches nothing.",
    ),
    "pytorch": (
        "`--lr` is absolute. The early program has no weight decay, no flips and a schedule that steps by epoch; the later one is meant when `--config` or one of its own spellings is used.",
        "CIFAR-10 images are enlarged to 224 x 224, as the original does.",
        "Without a checkpoint folder no checkpoints are written.",
        "`--half-res-training` with `--fine-tune-epoch` is followed by a second run in the folder `fine-tune` of the first: full size, averaged weights, SGD, a cosine over `--epoch` epochs, images cut as in validation.",
    ),
    "popart": (
        "`--batch-size` counts all replicas; the rate is 2^value times it, without the accumulation.",
        "The split into stages is automatic (`--splits auto`).",
        "CIFAR-10 validation images are shifted and flipped like training images (`--validation-transform train`), as the original did; its printed accuracy is that of the last 1,000 images (the last host call), here it is that of all 10,000.",
    ),
}


def page() -> str:
    """The whole page."""
    lines = [
        "# Coming from the older programs",
        "",
        "Their command lines run as they are, from `compat/<dialect>/` (`python3 train.py ...`, `poprun ... python3 train.py ...`).",
        "Each run prints the equivalent `conveyor` command and one note for each option without effect. Option names may be",
        "abbreviated as long as they are unique among the options of the documented program. Every option of `conveyor train`",
        "is understood beside theirs and means what it means there; data set, model, norm and optimiser, on which their",
        "defaults depend, go by their own words.",
        "",
        "The names of their checkpoints open ours in a run folder: `resnet18_cifar10_1.pt` and `epoch_1.0` that of an epoch,",
        "`ckpt-12` that of an update. The same command into the same folder again takes its place; the earlier run is kept",
        "beside it, as `FOLDER-1`. On a restored run an option that can change acts, the others are refused by name.",
        "",
        "This page is made from the tables in `src/conveyor/dialects/` (`python -m conveyor.dialects.migration > docs/migration.md`).",
    ]
    for dialect, title in TITLES.items():
        lines += ["", f"## {title}", ""]
        lines += [f"- {rule}" for rule in RULES[dialect]]
        for group, rows in DIALECTS[dialect].table.groups.items():
            lines += [
                "",
                f"### {title}: {group.lower()}",
                "",
                "| option | default or meaning | here |",
                "|---|---|---|",
            ]
            lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    names = ", ".join(f"`{name}`" for name in row.names)
    scripts = f" ({', '.join(f'{script}.py' for script in row.scripts)})" if row.scripts else ""
    models = f" ({', '.join(row.models)})" if row.models else ""
    about = row.about or (
        "off" if row.kind in ("flag", "off") else str(row.default) if row.default not in (None, []) else ""
    )
    return f"| {names}{scripts}{models} | {_cell(about)} | {_cell(row.target)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
