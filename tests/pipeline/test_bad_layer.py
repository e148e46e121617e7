"""A loss that is not finite: every worker names the same first bad layer, whoever holds it."""

import json
from typing import Any

import pytest
import torch

BASE: dict[str, Any] = {
    "data": "digits",
    "model": "resnet8",
    "splits": ["layer1", "layer2", "layer3"],
    "micro_batch_size": 4,
    "accumulation": 4,
    "updates": 2,
    "tensorboard": False,
    "device": "cpu",
    "threads": 1,
}


def broken_case(rank: int, text: str, lanes: int, depth: int, broken: str, value: float) -> dict[str, Any]:
    """One update with a weight overwritten, and what the check says of it."""
    from conveyor.options import Options
    from conveyor.run.assemble import UserObjects, make_feed, make_prepare, make_session
    from conveyor.spec import resolve
    from conveyor.training.health import NotFiniteError, check_finite
    from conveyor.training.loss import BAD
    from conveyor.world.distributed import ProcessWorld

    spec = resolve(Options.from_mapping({**json.loads(text), "layout": f"{lanes}x{depth}"}))
    world = ProcessWorld(lanes, depth, "cpu")
    prepare = make_prepare(spec, world)
    session = make_session(spec, world, UserObjects(), None, prepare)
    session.lane.module.train()
    with torch.no_grad():
        for name, parameter in session.lane.module.named_parameters():
            if name == broken:
                parameter.fill_(value)
    with make_feed(spec, world, UserObjects(), prepare, 0, session.lane.reads_data) as feed:
        tally = session.lane.gradients(iter(feed), 0, 1.0)
    world.sum_over_all([tally])
    try:
        check_finite(tally[:, BAD].sum().item(), session, 0.1)
    except NotFiniteError as error:
        return {"said": str(error), "pending": sum(float(t.abs().sum()) for t in _counts(session))}
    return {"said": ""}


def _counts(session: Any) -> list[torch.Tensor]:
    return [buffer for name, buffer in session.lane.module.named_buffers() if name.endswith("pending_count")]


@pytest.mark.parametrize("layout", ["1x2", "2x2", "2x1"])
@pytest.mark.parametrize(
    ("broken", "value", "cause"),
    [
        ("layer2.0.conv1.weight", 3e38, "the output of layer2.0.conv1"),
        ("layer3.0.bn2.bias", float("nan"), "the weights layer3.0.bn2.bias"),
    ],
)
def test_every_worker_names_the_first_bad_layer(pool: Any, layout: str, broken: str, value: float, cause: str) -> None:
    lanes, depth = (int(number) for number in layout.split("x"))
    text = json.dumps({**BASE, "replicas": lanes})
    results = pool.run(broken_case, lanes * depth, text=text, lanes=lanes, depth=depth, broken=broken, value=value)
    assert {result["said"].partition("first not finite: ")[2].partition(":")[0] for result in results} == {cause}
    # The search repeats the passes and leaves the gathered statistics as they were.
    for result in results:
        assert result["pending"] > 0
        assert result["pending"] % 4 == 0
