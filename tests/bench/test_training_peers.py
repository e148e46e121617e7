"""Training steps beside a loop that one would write."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conveyor.bench import training_peers
from conveyor.bench.limits import needs
from conveyor.bench.training_peers import Setting, measure, programs
from conveyor.errors import UserError
from conveyor.measure.processor import multiplies_bfloat16, processor
from conveyor.measure.rounds import Program
from conveyor.options import Options
from conveyor.options.file import parse_mapping


def test_a_real_competition() -> None:
    peer = "plain PyTorch, NCHW"
    setting = Setting("resnet8", 16, 4, 10)
    record = measure(setting, threads=1, rounds=2, steps=1, only=[peer])
    rates = {name for name in record.results if name.endswith(" rate")}
    assert rates == {"conveyor rate", "conveyor, bfloat16 rate", f"{peer} rate"}
    assert record.results["GEMM"].unit == "GFLOP/s"
    assert record.results["memory bandwidth"].unit == "GB/s"
    needed = needs("resnet8", 16, 10, training=True)
    for limit, amount in (("GEMM", needed.flops), ("memory bandwidth", needed.bytes_moved)):
        parts = (record.results[name].values for name in (f"conveyor share of {limit}", "conveyor rate", limit))
        for share, rate, roof in zip(*parts, strict=True):
            assert share == pytest.approx(100 * rate * amount / (roof * 1e9))
    assert len(record.results[f"ratio to {peer}"].values) == 2
    assert (record.conditions["rounds"], record.conditions["steps"]) == (2, 1)
    assert record.conditions["versions"][peer] == {"torch": torch.__version__}


def test_our_lanes_decay_the_weights_as_the_loops_beside_them_do() -> None:
    ours = programs(Setting("resnet8", 16, 4, 10), threads=2)[0]
    options = Options.from_mapping(parse_mapping(ours.command[-1], "the program"), where="the program")
    peers = Path(training_peers.__file__).parent / "peers"
    for program, words in (
        ("plain_pytorch", "SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)"),
        ("lightning_trainer", "SGD(self.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)"),
        ("conveyor_training", 'work.options("1x1", asked["threads"])'),
    ):
        assert words in (peers / f"{program}.py").read_text()
    optimizer = options.optimizer
    assert (optimizer.optimizer, optimizer.momentum, optimizer.l2_regularization) == ("momentum", 0.9, 1e-4)


TRAINER = """
import torch
done = 0
LightningModule = torch.nn.Module

class Trainer:
    def __init__(self, **options): pass

    def fit(self, module, loader):
        global done
        batches = iter(loader)
        ahead = next(batches)
        for following in batches:
            module.training_step(ahead, 0).backward()
            done, ahead = done + 1, following
"""


def test_lightning_warms_up_as_long_as_the_others_although_it_fetches_ahead(tmp_path: Path) -> None:
    """A stand-in for its trainer, which fetches the next batch of a stream before it trains on the one at hand."""
    (tmp_path / "lightning.py").write_text(TRAINER)
    peers = Path(training_peers.__file__).parent / "peers"
    program = f"""
import builtins, sys
sys.path[:0] = [{str(tmp_path)!r}, {str(peers)!r}]
import lightning, lightning_trainer
builtins.print = lambda text, say=print, **more: say(lightning.done, text, flush=True)
lightning_trainer.main()
"""
    asked = json.dumps({"model": "resnet8", "image_size": 16, "batch": 2, "classes": 10, "threads": 1})
    said = subprocess.run(
        [sys.executable, "-c", program, asked], input='{"steps": 3}\n', capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[0].startswith('2 {"ready": true')
    assert said[1].startswith('5 {"seconds"')


def test_what_an_image_needs() -> None:
    forward, both = (needs("resnet50", 224, 1000, training=training) for training in (False, True))
    assert forward.flops == pytest.approx(2 * 4.09e9, rel=0.01), "4.1 billion multiply-adds"
    # 11.1 million outputs of convolutions, nearly as many of norms, of activations, 5.5 million of sums: written and read.
    assert forward.bytes_moved == pytest.approx(2 * 4 * 37e6, rel=0.1)
    assert (both.flops, both.bytes_moved) == (3 * forward.flops, 3 * forward.bytes_moved)


def test_both_sides_at_their_best_precision() -> None:
    """bfloat16 takes part on both sides; the ratio of the best is of two programs' own rounds."""
    peer = "plain PyTorch, bfloat16 autocast"
    record = measure(Setting("resnet8", 16, 4, 10), threads=1, rounds=2, steps=1, only=[training_peers.OURS_HALF, peer])
    (name,) = [name for name in record.results if name.startswith(training_peers.BEST_RATIO)]
    ours, theirs = name.partition("(")[2].rstrip(")").split(" / ")
    assert theirs == peer
    rates = record.results[f"{ours} rate"].values, record.results[f"{theirs} rate"].values
    assert record.results[name].values == tuple(one / other for one, other in zip(*rates, strict=True))
    if multiplies_bfloat16():
        assert record.results["bfloat16 GEMM"].unit == "GFLOP/s"
        assert f"{training_peers.OURS_HALF} share of bfloat16 GEMM" in record.results
    assert record.machine["processor"] == processor().label
    assert set(processor().features) <= set(record.machine["processor"].split())


def test_every_way_of_the_plain_loop_takes_part() -> None:
    ways = training_peers.peers(2)
    for words in ("channels_last", "bfloat16 autocast", "torch.compile", "torch.compile, bfloat16 autocast"):
        assert f"plain PyTorch, {words}" in ways


def test_no_products_in_bfloat16_where_the_processor_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's take minutes there; ours, emulated, still runs."""
    monkeypatch.setattr(training_peers, "multiplies_bfloat16", lambda: False)
    ran: list[list[str]] = []

    def run_rounds(found: list[Program], **_: object) -> None:
        ran.append([each.name for each in found])
        raise UserError("enough")

    monkeypatch.setattr(training_peers, "run_rounds", run_rounds)
    for only in ([], ["plain PyTorch, channels_last"]):
        with pytest.raises(UserError, match="enough"):
            measure(Setting("resnet8", 16, 4, 10), threads=1, rounds=1, only=only)
    assert training_peers.OURS_HALF in ran[0]
    assert training_peers.HALF_GEMM not in ran[0] + ran[1]
    assert not [name for name in ran[0] if "autocast" in name]
    assert "plain PyTorch, channels_last" in ran[0]
    assert "plain PyTorch, channels_last" in ran[1]
