"""The two streams of a run: training slots in the order of (update, slot), and validation with every image once."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Unpack

from conveyor.data import order
from conveyor.data.batch import Dataset
from conveyor.data.labels import labels_of
from conveyor.data.loader import Job, Loader, Loading
from conveyor.data.order import Indices, SlotShape


class TrainingFeed(Loader):
    """Endless micro-batches of the slots `slots` of each update, from update `start_update` on.

    `topology` has `micro_batch` and `slots` (per update, over all lanes); `slots` are the numbers of those that this
    lane runs. Which samples a batch holds is a pure function of (seed, update, slot): nothing before `start_update` is
    read. `stop_update` ends the stream. `transform` runs in the loader threads (`Prepare.on_host`). `repeats` and
    `balanced` put samples into an epoch more than once (`order.repeated`, `order.balanced_order`).
    """

    def __init__(
        self,
        dataset: Dataset,
        topology: SlotShape,
        *,
        updates_per_epoch: int,
        slots: Sequence[int] | None = None,
        start_update: int = 0,
        stop_update: int | None = None,
        seed: int = 0,
        shuffle: str = "full",
        repeats: int = 1,
        balanced: bool = False,
        **how: Unpack[Loading],
    ) -> None:
        mine = list(range(topology.slots)) if slots is None else list(slots)
        if any(not 0 <= slot < topology.slots for slot in mine):
            raise ValueError(f"slots {mine} are not all among the {topology.slots} slots of an update")

        labels = labels_of(dataset) if balanced else None

        def epoch_order(epoch: int) -> Indices:
            if labels is not None:
                return order.balanced_order(labels, seed, epoch)
            found = order.epoch_order(len(dataset), seed, epoch, shuffle, shards=dataset.shards())
            return order.repeated(found, repeats, topology.slots * topology.micro_batch) if repeats > 1 else found

        def jobs() -> Iterator[Job]:
            orders = functools.lru_cache(maxsize=1)(epoch_order)
            updates = itertools.count(start_update) if stop_update is None else range(start_update, stop_update)
            for update in updates:
                epoch, update_in_epoch = divmod(update, updates_per_epoch)
                for slot in mine:
                    indices = order.slot_indices(orders(epoch), update_in_epoch, slot, topology)
                    yield Job(indices, len(indices), update, slot, epoch)

        super().__init__(dataset, jobs(), **how)


class ValidationFeed(Loader):
    """Every image exactly once over all lanes: batch number i goes to lane i mod `lanes`; the last one is padded.

    All batches have `batch` rows; rows from `Batch.num_valid` on are zero images with `PADDING_LABEL`. Count over all
    lanes and divide once by the number of images: `len(feed)` is the number of this lane's batches.
    """

    def __init__(self, dataset: Dataset, batch: int, lane: int = 0, lanes: int = 1, **how: Unpack[Loading]) -> None:
        if not 0 <= lane < lanes:
            raise ValueError(f"lane {lane} is not one of {lanes}")
        stored = order.epoch_order(len(dataset), 0, 0, "none")
        starts = range(lane * batch, len(dataset), lanes * batch)
        self._length = len(starts)
        jobs = (Job(stored[start : start + batch], batch, -1, start // batch, 0) for start in starts)
        super().__init__(dataset, jobs, **how)

    def __len__(self) -> int:
        return self._length
