"""`pip install -r requirements.txt` in a dialect's folder, and nothing else: the document's commands run."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.conformance.running import shell
from tests.data.small import make_cifar10
from tests.dialects.command_lines import COMPAT

EXTRAS = {"tensorflow1": "track,dev", "tensorflow2": "track,export,serve", "pytorch": "track", "popart": "track"}
MODEL = "--model cifar_resnet8 --dataset cifar10 --dataset-path {data} --micro-batch-size 4"
COMMANDS = {
    "tensorflow1": (
        ("python train.py --config mk2_resnet8_test --wandb --data-dir {data} --epochs 1 --logs-path {here}/run", "run/wandb/*"),
        ("python3 -m pytest -p no:cacheprovider", ""),
    ),
    "tensorflow2": (
        (f"python3 train.py {MODEL} --wandb True --checkpoint-output-dir {{here}}/run", "run/checkpoints/*/manifest"),
        (f"python3 scripts/export_for_serving.py {MODEL} --export-dir {{here}}/exported --checkpoint-input-path {{here}}/run", "exported/saved_model.pb"),
        (f"python3 send_request.py {MODEL} --num-images 8 --checkpoint-input-path {{here}}/run", "compat/tensorflow2/cifar_resnet8/001/saved_model.pb"),
    ),
    "pytorch": (
        ("python3 train.py --data cifar10 --data-dir {data} --model resnet18 --image-size 16 --batch-size 4 --epoch 1 --wandb --checkpoint-path {here}/run", "run/wandb/*"),
        ("python3 restore.py --checkpoint-path {here}/run --epoch 2", "run/checkpoints/20/manifest"),
        ("python3 validate.py --checkpoint-path {here}/run --run-dir {here}/validated", "validated/validation.csv"),
        ("python3 weight_avg.py --checkpoint-input-path {here}/run --checkpoint-output-path {here}/mean --weight-avg-strategy mean", "mean/**/model.safetensors"),
    ),
    "popart": (
        ("python3 resnet_main.py --dataset CIFAR-10 --data-dir {data} --size 8 --batch-size 4 --epochs 1 --log-dir {here}/logs", "logs/*/8/net/tensorboard/**/events.out.tfevents.*"),
        ("python3 resnet_synthetic_benchmark.py --size 8 --batch-size 4 --epochs 1 --batches-per-step 2 --max-train-images 16 --log-dir {here}/made", "made/*/8/net/metrics.csv"),
    ),
}  # fmt: skip
"""Command, and a file that it must leave."""


@pytest.mark.parametrize("folder", EXTRAS)
def test_the_requirements_name_what_the_document_promises(folder):
    text = (COMPAT / folder / "requirements.txt").read_text()
    named = re.search(r"^-e \.\./\.\.\[([a-z,]+)\]$", text, re.MULTILINE)[1]
    assert named == EXTRAS[folder]
    project = tomllib.loads((COMPAT.parent / "pyproject.toml").read_text())["project"]
    assert set(named.split(",")) <= set(project["optional-dependencies"])
    assert ("tensorflow-cpu" in text) == (folder == "tensorflow2")


@pytest.mark.conformance
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("folder", COMMANDS)
def test_a_fresh_environment_runs_the_commands(folder, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    programs = tmp_path / "env" / "bin"
    installed = subprocess.run(
        [str(programs / "pip"), "install", "--quiet", "-r", "requirements.txt"],
        cwd=COMPAT / folder, text=True, capture_output=True, timeout=2000, check=False,
    )  # fmt: skip
    if installed.returncode and re.search(r"No matching distribution|Connection|Network", installed.stderr):
        pytest.skip(f"the packages cannot be had here: {installed.stderr.strip().splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr[-2000:]
    make_cifar10(tmp_path / "data" / "cifar-10-batches-bin", per_file=8)
    shutil.copytree(
        COMPAT, tmp_path / "compat", symlinks=True, ignore=shutil.ignore_patterns("logs", "runs", "configs.yml")
    )
    for command, left in COMMANDS[folder]:
        text = command.replace("{data}", str(tmp_path / "data")).replace("{here}", str(tmp_path))
        bound = f"PATH={programs}:/usr/bin:/bin {text}"
        code, output = shell(bound, tmp_path / "compat" / folder, {"WANDB_MODE": "offline", "PYTHONPATH": ""})
        assert code == 0, f"{command}\n{output[-3000:]}"
        assert "Traceback" not in output
        assert not left or any(Path(tmp_path).glob(left)), f"{command} left no {left}\n{output[-2000:]}"
