"""Batch norm over two workers equals batch norm over their joint batch, forward and backward."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from conveyor.models.layers import norms
from conveyor.models.layers.norms import BatchNorm


def _worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        x, weight, bias, seed = torch.load(f"{folder}/inputs.pt", weights_only=True)
        norm = BatchNorm(5)
        norm.span_group = dist.group.WORLD
        with torch.no_grad():
            norm.weight.copy_(weight)
            norm.bias.copy_(bias)
        # Unequal shares: two samples here, four there.
        mine = (x[:2] if rank == 0 else x[2:]).clone().requires_grad_()
        y = norm(mine)
        y.backward(seed[:2] if rank == 0 else seed[2:])
        for tensor in norms.pending(norm):
            dist.all_reduce(tensor)
        norms.commit(norm)
        torch.save(
            [
                y.detach(),
                mine.grad,
                norm.weight.grad,
                norm.bias.grad,
                norm.running_mean,
                norm.running_var,
                norm.num_batches_tracked,
            ],
            f"{folder}/{rank}.pt",
        )
    finally:
        dist.destroy_process_group()


def test_two_workers_equal_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layout = torch.channels_last
    x = (torch.randn(6, 5, 4, 3) * 2 + 100).contiguous(memory_format=layout)
    weight, bias, seed = torch.rand(5) + 0.5, torch.randn(5), torch.randn(6, 5, 4, 3).contiguous(memory_format=layout)
    torch.save((x, weight, bias, seed), tmp_path / "inputs.pt")
    mp.start_processes(_worker, args=(str(tmp_path),), nprocs=2, start_method="spawn")
    alone = BatchNorm(5).double()
    with torch.no_grad():
        alone.weight.copy_(weight)
        alone.bias.copy_(bias)
    whole = x.double().requires_grad_()
    y = alone(whole)
    y.backward(seed.double())
    norms.commit(alone)
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(torch.cat([part[0] for part in parts]).double(), y.detach(), **close)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]).double(), whole.grad, **close)
    torch.testing.assert_close((parts[0][2] + parts[1][2]).double(), alone.weight.grad, **close)
    torch.testing.assert_close((parts[0][3] + parts[1][3]).double(), alone.bias.grad, **close)
    for part in parts:
        torch.testing.assert_close(part[4].double(), alone.running_mean, **close)
        torch.testing.assert_close(part[5].double(), alone.running_var, **close)
        assert part[6].item() == alone.num_batches_tracked.item() == 1
