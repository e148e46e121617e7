"""`--compile`: the same bits on every layout, and those of the uncompiled run within rounding."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.exact import differences
from tests.pipeline.test_exact import run_case

BASE: dict[str, Any] = {
    "data": "digits", "model": "cifar_resnet8", "micro_batch_size": 4, "accumulation": 2, "replicas": 2, "stages": 2,
    "learning_rate": 0.005, "updates": 3, "max_validation_images": 40, "seed": 3, "device": "cpu", "threads": 1,
    "tensorboard": False, "quiet": True, "compile": True,
}  # fmt: skip
SETS: dict[str, dict[str, Any]] = {
    "joined": {"pass_slots": "2"},
    "recomputed": {"recompute": ["block"], "pipeline_schedule": "1f1b"},
    "half": {"survival": 0.7, "precision": "16.32", "loss_scale": "64"},
    "random": {"precision": "16.32", "loss_scale": "64", "stochastic_rounding": "all"},
    "group": {"norm": "group", "norm_groups": 4},
}


def trained(pool: Any, layout: str, folder: Path, options: dict[str, Any]) -> Path:
    lanes, depth = (int(part) for part in layout.split("x"))
    arguments = {"text": json.dumps(options), "lanes": lanes, "depth": depth, "folder": str(folder / layout)}
    return Path(pool.run(run_case, lanes * depth, **arguments)[0])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints/3/model.safetensors")


@pytest.mark.conformance
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SETS)
def test_compiled_blocks_compute_the_same_bits_everywhere(pool: Any, name: str, tmp_path: Path) -> None:
    options = BASE | SETS[name]
    alone = trained(pool, "1x1", tmp_path, options)
    for layout in ("2x1", "1x2"):
        assert differences(trained(pool, layout, tmp_path, options), alone) == [], layout
    plain = trained(pool, "1x1", tmp_path / "plain", options | {"compile": False, "recompute": []})
    found, expected = weights(alone), weights(plain)
    if name == "random":  # activations and sums alone are compiled, which round nothing
        assert differences(alone, plain) == []
        return
    assert any(not torch.equal(found[one], expected[one]) for one in expected), "nothing was compiled"
    tolerance = 1e-5 if options.get("precision", "32.32") == "32.32" else 2e-2
    for one in expected:
        torch.testing.assert_close(found[one], expected[one], rtol=tolerance, atol=tolerance)


@pytest.mark.conformance
@pytest.mark.timeout(1200)
def test_recomputing_compiled_blocks_changes_no_bit(pool: Any, tmp_path: Path) -> None:
    kept = trained(pool, "1x1", tmp_path / "kept", BASE)
    again = trained(pool, "1x1", tmp_path / "again", BASE | {"recompute": ["block"]})
    assert differences(kept, again) == []
