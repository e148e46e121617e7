"""`conveyor.train` in a script that a launcher starts several times: one run, on every worker, with the bits of one process."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.exact import differences

OPTIONS = (
    "dict(updates=12, updates_per_epoch=6, micro_batch_size=8, accumulation=4, threads=1, report=False, tensorboard=False, "
    "quiet=True, device='cpu')"
)
SCRIPT = f"""
import gc, os, sys, warnings
from pathlib import Path
import numpy as np, torch, conveyor
from torch import nn

OPTIONS = {OPTIONS}
RANK = int(os.environ.get("RANK", "0"))
warnings.simplefilter("ignore")


def data(part=slice(None)):
    draw = np.random.default_rng(3)
    images = draw.integers(0, 256, (256, 12, 12, 1), dtype=np.uint8)
    labels = np.arange(256) // 64
    return (images[part], labels[part]), (images[:64], labels[:64])


def net(width=8):
    torch.manual_seed(RANK)
    layers = [nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(width, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))


what, folder = sys.argv[1:]
if what == "both":
    run = conveyor.train(run_dir=folder + "/named", **OPTIONS)
    run = conveyor.train(model=net(), data=data(), run_dir=folder + "/own", **OPTIONS)
elif what == "group":
    torch.distributed.init_process_group("gloo")
    run = conveyor.train(model=net(), data=data(), run_dir=folder + "/own", **OPTIONS)
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    assert total.item() == 2, "the caller's group is still there"
    torch.distributed.destroy_process_group()  # as PyTorch asks: its threads may abort the process at its end
elif what == "again":
    held = []
    for number in range(4):
        run = conveyor.train(model=net(), data=data(), run_dir=folder + str(number), **OPTIONS)
        layers = sum(isinstance(one, nn.Conv2d) for one in gc.get_objects())
        threads = [Path("/proc/self/task", task, "comm").read_text().strip() for task in os.listdir("/proc/self/task")]
        held.append((len(os.listdir("/proc/self/fd")), layers))
        # One of them that is left when Python ends can abort the process.
        assert not [name for name in threads if "gloo" in name], threads
    (first, *_, last), layers = zip(*held)
    # A connection may take a moment to close: of three runs more, each of which opened nine.
    assert last <= first + 2 and layers == (1, 1, 1, 1), held
elif what == "parts":
    run = conveyor.train(data=data(slice(RANK, None, 2)), run_dir=folder, **OPTIONS)
else:
    run = conveyor.train(model=net(8 + RANK), data=data(), run_dir=folder, **OPTIONS)
os.write(1, f"worker {{RANK}}: {{run.updates}} updates, {{len(run.metrics)}} rows\\n".encode())  # in one piece
"""


def torchrun(place: Path, what: str, workers: int = 2) -> "subprocess.CompletedProcess[str]":
    (place / "script.py").write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(workers),
        "script.py",
        what,
        "two",
    ]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("what", ["both", "group"])
def test_every_worker_has_the_run(tmp_path: Path, what: str) -> None:
    done = torchrun(tmp_path, what)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("worker")]
    assert sorted(said) == [f"worker {rank}: 12 updates, 2 rows" for rank in range(2)]
    subprocess.run([sys.executable, "script.py", "both", "one"], cwd=tmp_path, check=True, timeout=280)
    for name in ("named", "own") if what == "both" else ("own",):
        assert differences(tmp_path / "one" / name, tmp_path / "two" / name) == []


def test_a_run_that_has_ended_holds_nothing(tmp_path: Path) -> None:
    """Three lanes, which wait for each other in threads; sockets and layers are those after the first run."""
    done = torchrun(tmp_path, "again", 3)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("what", "sentence"), [("parts", "were given different data"), ("nets", "with different layers")]
)
def test_objects_that_differ_are_refused(tmp_path: Path, what: str, sentence: str) -> None:
    done = torchrun(tmp_path, what)
    assert done.returncode != 0
    assert f"workers 0 and 1 were given {sentence.removeprefix('were given ')}" in done.stderr.replace("modules ", "")
    assert not (tmp_path / "two/options.yml").exists(), "nothing was started"


@pytest.mark.conformance
def test_the_tasks_of_submitit_are_workers(tmp_path: Path) -> None:
    submitit = pytest.importorskip("submitit", reason="submitit is not installed: pip install submitit")
    import conveyor

    executor = submitit.AutoExecutor(str(tmp_path / "log"), cluster="local")
    executor.update_parameters(tasks_per_node=2, timeout_min=5)
    options = eval(OPTIONS)
    job = executor.submit(train_and_count, str(tmp_path / "two"), options)
    assert job.results() == [12, 12]
    conveyor.train(run_dir=str(tmp_path / "one"), layout="1x1", **options)
    assert differences(tmp_path / "one", tmp_path / "two") == []


def train_and_count(folder: str, options: dict[str, object]) -> int:
    import conveyor

    return conveyor.train(run_dir=folder, resume="auto", **options).updates  # type: ignore[arg-type]
