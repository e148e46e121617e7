"""Record what a training run reached, as benchmarks/accuracy/NAME.json, and write benchmarks/accuracy.md anew.

    python scripts/record_accuracy.py NAME RUN_FOLDER --command "..." --expected "..." [--commit HASH] [--note "..."]

The figures are those of the run's validation.csv and metrics.csv; --command is the command as a user types it.
"""

import argparse
import csv
import json
import re
from pathlib import Path
from typing import Any

from conveyor.bench.records import machine

HERE = Path(__file__).resolve().parent.parent / "benchmarks"
PAGE = """# Accuracies

What training on real data reached, next to what is expected of it. Each line comes from a record in `accuracy/` with the
command, the losses and accuracies by epoch, the machine, the versions and the commit (`scripts/record_accuracy.py`).

| run | expected | validation accuracy by epoch, % | training accuracy at the end, % | updates | commit |
|---|---|---|---|---|---|
"""


def record(name: str, folder: Path, command: str, expected: str, commit: str | None, note: str) -> dict[str, Any]:
    """All that is kept of a run."""
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    here = machine()
    del here["load_before"]
    if commit:
        here["commit"] = commit
    validations = [
        {key: float(row[key]) for key in ("update", "epoch", "accuracy", "accuracy_top5", "loss", "images")}
        for row in _rows(folder / "validation.csv")
        if float(row["update"]) > 0
    ]
    training = [
        {key: float(row[key]) for key in ("update", "epoch", "lr", "loss", "accuracy", "images_per_second")}
        for row in _rows(folder / "metrics.csv")
    ]
    ends = {int(-(-row["epoch"] // 1)): row for row in training}
    return {
        "name": name,
        "command": command,
        "equivalent": _without_folders(spec["command"]),
        "expected": expected,
        "note": note,
        "model": spec["model"],
        "data": spec["data"],
        "updates": spec["updates_total"],
        "first_lr": training[0]["lr"],
        "last_lr": training[-1]["lr"],
        "validations": validations,
        "training_by_epoch": list(ends.values()),
        "machine": here,
    }


def page(records: list[dict[str, Any]]) -> str:
    """The Markdown page of all records."""
    lines = []
    for one in records:
        reached = " ".join(f"{row['accuracy']:.1f}" for row in one["validations"])
        last = one["training_by_epoch"][-1]["accuracy"] if one["training_by_epoch"] else float("nan")
        lines.append(
            f"| {one['name']}: `{one['command']}` | {one['expected']} | {reached} | {last:.1f} | {one['updates']:,} | "
            f"{one['machine']['commit'][:12]} |"
        )
    notes = [f"{one['name']}: {one['note']}" for one in records if one["note"]]
    return PAGE + "\n".join(lines) + "\n" + "".join(f"\n{note}\n" for note in notes)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _without_folders(command: str) -> str:
    """Folders are the recording machine's own affair."""
    return re.sub(r"(--(?:data|run)-dir) \S+", r"\1 DIR", command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--command", required=True)
    parser.add_argument("--expected", required=True)
    parser.add_argument("--commit", help="the commit that ran, if it is not the one checked out")
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    made = record(given.name, given.folder, given.command, given.expected, given.commit, given.note)
    path = HERE / "accuracy" / f"{given.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    records = [json.loads(one.read_text(encoding="utf-8")) for one in sorted(path.parent.glob("*.json"))]
    (HERE / "accuracy.md").write_text(page(records), encoding="utf-8")


if __name__ == "__main__":
    main()
