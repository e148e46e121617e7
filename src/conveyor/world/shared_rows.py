"""Parts of a sum in memory that all lanes of one machine map: only the message that a part is complete is sent.

A lane writes its rows into a file without a name (`memfd_create`), which the others open through /proc. Each then adds up
all rows by itself, in the order of the tree: the bits are those of `Exchange`'s messages. A random number in
each file, which also comes over the lanes' own connections, shows that it is the lane's: workers on other machines or in other
containers do not share.

Small messages say when rows may be read, and when they have been read and may be written again; a lane that has died shows
there, as in every message.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

MOST_LANES = 4
"""Every lane reads every row: with more lanes, shards that are sent are less work."""
_NUMBER = 16
_HEAD = mmap.PAGESIZE


class SharedRows:
    """The parts [p, n] of every lane for one vector of n values; all lanes make it and use it in the same order."""

    def __init__(
        self, own: Tensor, every: Sequence[Tensor], total: Callable[[list[Tensor]], Tensor], group: Any
    ) -> None:
        self._own, self._every, self._total, self._group = own, list(every), total, group
        self._written: Any = None
        self._read: Any = None

    def rows(self) -> Tensor:
        """This lane's rows, to be written; waits until all lanes have read what is in them."""
        if self._read is not None:
            self._read.wait()
        return self._own

    def begin(self) -> Callable[[], Tensor]:
        """This lane's rows are complete; what waits for the sum."""
        self._written = self._message()
        return self.wait

    def wait(self) -> Tensor:
        """The sum over all lanes' rows, [n]."""
        self._written.wait()
        rows = [row for rows in self._every for row in rows.unbind()]
        # What is returned may be changed: never a lane's own row.
        found = self._total(rows) if len(rows) > 1 else rows[0].clone()
        self._read = self._message()
        return found

    def _message(self) -> Any:
        return dist.all_reduce(torch.zeros(1), group=self._group, async_op=True)


def share(
    counts: Sequence[int],
    length: int,
    dtype: torch.dtype,
    lane: int,
    group: Any,
    total: Callable[[list[Tensor]], Tensor],
) -> SharedRows | None:
    """The shared rows of lanes with `counts` parts of `length` values each; None for all, if one cannot open another's."""
    if not 1 < len(counts) <= MOST_LANES or not length:
        return None
    sizes = [_HEAD + max(1, count) * length * dtype.itemsize for count in counts]
    number, file = os.urandom(_NUMBER), -1
    try:
        file = os.memfd_create("conveyor-rows")
        os.ftruncate(file, sizes[lane])
        os.pwrite(file, number, 0)
    except (OSError, AttributeError):
        pass  # no file is told as -1, which nobody can open
    about = [*torch.frombuffer(bytearray(number), dtype=torch.int64).tolist(), os.getpid(), file]
    told = [torch.zeros(len(about), dtype=torch.int64) for _ in counts]
    dist.all_gather(told, torch.tensor(about), group=group)
    every: list[Tensor] = []
    for count, size, one in zip(counts, sizes, told, strict=True):
        mapped = _mapped(one, size)
        if mapped is not None:
            values = torch.frombuffer(mapped, dtype=dtype, count=max(1, count) * length, offset=_HEAD)
            every.append(values[: count * length].view(count, length))
    able = torch.tensor([float(len(every) == len(counts))])
    dist.all_reduce(able, dist.ReduceOp.MIN, group=group)
    if file >= 0:
        os.close(file)
    return SharedRows(every[lane], every, total, group) if able.item() else None


def _mapped(told: Tensor, size: int) -> mmap.mmap | None:
    """The file that a lane has told of, if it can be opened here and is that lane's."""
    process, file = told[-2:].tolist()
    try:
        opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
        try:
            is_theirs = os.pread(opened, _NUMBER, 0) == told[:-2].numpy().tobytes()
            return mmap.mmap(opened, size) if is_theirs else None
        finally:
            os.close(opened)
    except (OSError, ValueError):
        return None
