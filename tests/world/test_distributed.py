"""What workers make and send: no group that nobody uses, no collective for each layer of a network."""

from pathlib import Path
from typing import Any

import pytest

OPTIONS: dict[str, Any] = {
    "data": "digits", "updates_per_epoch": 100, "updates_per_log": 100, "micro_batch_size": 4, "accumulation": 2,
    "replicas": 2, "validation": False, "report": False, "tensorboard": False, "quiet": True, "device": "cpu", "threads": 1,
}  # fmt: skip


def groups_of(rank: int, lanes: int, depth: int) -> int:
    from unittest import mock

    import torch.distributed as dist

    from conveyor.world.distributed import ProcessWorld

    with mock.patch.object(dist, "new_group", wraps=dist.new_group) as made:
        ProcessWorld(lanes, depth)
    return made.call_count


def sums_of(rank: int, folder: str, **options: Any) -> int:
    """How often worker `rank` of a run on two lanes waits for the other: sums of gradients, statistics and tallies."""
    from unittest import mock

    from conveyor.options import Options
    from conveyor.run import worker
    from conveyor.spec import resolve
    from conveyor.world.distributed import ProcessWorld
    from conveyor.world.exchange import Exchange

    spec = resolve(Options.from_mapping(OPTIONS | options | {"layout": "2x1", "run_dir": folder}))
    with mock.patch.object(Exchange, "begin", autospec=True, side_effect=Exchange.begin) as begun:
        worker.run(spec, ProcessWorld(2, 1))
    return begun.call_count


@pytest.mark.parametrize(("lanes", "depth", "made"), [(2, 1, 1), (1, 2, 1), (2, 2, 4)])
def test_no_group_that_is_not_used(pool: Any, lanes: int, depth: int, made: int) -> None:
    """Beside that of all workers: one of the lanes for each stage, if there are lanes, and one of the stages for each lane."""
    assert pool.run(groups_of, lanes * depth, lanes=lanes, depth=depth) == [made] * (lanes * depth)


def test_a_deeper_network_sends_no_more_messages(pool: Any, tmp_path: Path) -> None:
    """The norms of a network have one message for each update: 7 norms or 19, all gradients in one bucket."""

    def each(model: str) -> int:
        few, many = (
            pool.run(sums_of, 2, folder=str(tmp_path / f"{model}{updates}"), model=model, updates=updates)[0]
            for updates in (2, 4)
        )
        assert (many - few) % 2 == 0
        return int(many - few) // 2

    assert each("cifar_resnet8") == each("cifar_resnet20") <= 3


def test_a_network_without_norms_sends_nothing_for_them() -> None:
    """Nor does it ask for a stream of the device: what is empty lies on the host."""
    import torch

    from conveyor.layout import deal
    from conveyor.world.exchange import Exchange

    exchange = Exchange(deal(8, 1, 3), 0, [0, 1, 2], None, torch.device("cuda"))
    assert exchange.begin(torch.zeros(3, 0))().shape == (0,)
