"""Batches prepared ahead by threads, delivered in order.

The consumer does the scheduling: each `next()` fills the queue up to `prefetch` batches and waits for the first one. So
at most `prefetch` batches are in work, no scheduler thread can be left running, and an exception of a loader thread is
raised unchanged by `next()`.
"""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypedDict

import numpy as np
import torch

from conveyor.data.batch import PADDING_LABEL, Batch, Dataset
from conveyor.data.labels import check_labels
from conveyor.data.order import Indices
from conveyor.layout import usable_cores

Transform = Callable[[Batch], Batch]


class Loading(TypedDict, total=False):
    """How batches are prepared: the named arguments of `Loader`, which every feed takes."""

    prefetch: int
    threads: int | None
    transform: Transform | None
    pin: bool


class Loader:
    """Turns a sequence of jobs (samples to read) into batches, `prefetch` of them ahead, in order."""

    def __init__(
        self,
        dataset: Dataset,
        jobs: Iterator["Job"],
        *,
        prefetch: int = 4,
        threads: int | None = None,
        transform: Transform | None = None,
        pin: bool = False,
    ) -> None:
        """`threads` by default: one copies from memory fast enough, decoding takes as many as there are usable cores."""
        threads = threads or (usable_cores() if dataset.chunk else 1)
        self.dataset = dataset
        self._jobs = jobs
        self._prefetch = max(1, prefetch)
        self._transform = transform
        self._pin = pin
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(max(1, threads), thread_name_prefix="conveyor-data")
        self._waiting: deque[Future[Batch]] = deque()
        self._wait_seconds = 0.0
        self._images = 0
        self._batches = 0
        self._opened = time.perf_counter()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self._top_up()
        if not self._waiting:
            self.close()
            raise StopIteration
        started = time.perf_counter()
        try:
            batch = self._waiting.popleft().result()
        except BaseException:
            self.close()
            raise
        self._wait_seconds += time.perf_counter() - started
        self._images += batch.num_valid
        self._batches += 1
        self._top_up()
        return batch

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop: batches not yet begun are dropped, those in work are finished, the threads end. May be called again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
            self._waiting.clear()

    def statistics(self) -> dict[str, float]:
        """Seconds by stage so far: `wait` is the consumer's, the others are thread time; and images per second."""
        elapsed = time.perf_counter() - self._opened
        return {
            **self.dataset.statistics(),
            "wait": self._wait_seconds,
            "images": float(self._images),
            "batches": float(self._batches),
            "images_per_second": self._images / elapsed if elapsed > 0 else 0.0,
        }

    def _top_up(self) -> None:
        while self._pool is not None and len(self._waiting) < self._prefetch:
            job = next(self._jobs, None)
            if job is None:
                return
            self._waiting.append(self._submit(self._pool, job))

    def _submit(self, pool: ThreadPoolExecutor, job: "Job") -> "Future[Batch]":
        """Read the job's samples in chunks, one task each; the thread that ends the last chunk finishes the batch."""
        size = len(job.indices)
        chunk = self.dataset.chunk or size
        starts = range(0, size, chunk) if size else range(1)
        work = _Assembly(job, self.dataset, len(starts), self._finish)
        for start in starts:
            pool.submit(work.read, start, min(start + chunk, size)).add_done_callback(work.dropped)
        return work.result

    def _finish(self, batch: Batch) -> Batch:
        if self._transform is not None:
            batch = self._transform(batch)
        return batch.pinned() if self._pin else batch


@dataclasses.dataclass(slots=True)
class Job:
    """The samples of one batch and what they are for; `batch` > len(indices) asks for padding."""

    indices: Indices
    batch: int
    update: int
    slot: int
    epoch: int


class _Assembly:
    """A batch being filled by several threads."""

    def __init__(self, job: Job, dataset: Dataset, parts: int, finish: Callable[[Batch], Batch]) -> None:
        self._job = job
        self._dataset = dataset
        self._finish = finish
        self._open_parts = parts
        self._lock = threading.Lock()
        self.result: Future[Batch] = Future()
        shape = dataset.shape(job.epoch)
        valid = len(job.indices)
        self._images = torch.empty(job.batch, *shape, dtype=torch.uint8)
        if valid < job.batch:
            self._images[valid:] = 0
        columns = (dataset.num_classes,) if getattr(dataset, "multi_label", False) else ()
        self._labels = torch.full((job.batch, *columns), PADDING_LABEL, dtype=torch.int64)

    def read(self, start: int, stop: int) -> None:
        job = self._job
        try:
            if stop > start and not self.result.done():
                keys = job.indices[start:stop]
                # A set that draws crops takes the copies' own numbers; the others know their samples alone.
                keys = keys if getattr(self._dataset, "draws", False) else keys % len(self._dataset)
                raw = self._dataset.read(keys, job.epoch, self._images[start:stop])
                check_labels(self._dataset, keys, raw.labels.numpy())
                self._labels[start:stop] = raw.labels
            with self._lock:
                self._open_parts -= 1
                last = self._open_parts == 0
            if last and not self.result.done():
                self.result.set_result(self._finish(self._batch()))
        except BaseException as error:
            self._fail(error)

    def dropped(self, task: "Future[None]") -> None:
        """Cancel the batch when a chunk will never run (the pool was shut down), so that no consumer waits for it."""
        if task.cancelled():
            with self._lock:
                if not self.result.done():
                    self.result.cancel()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if not self.result.done():
                self.result.set_exception(error)

    def _batch(self) -> Batch:
        job = self._job
        samples = torch.from_numpy(np.array(job.indices, dtype=np.int64))
        if len(samples) < job.batch:
            samples = torch.nn.functional.pad(samples, (0, job.batch - len(samples)), value=-1)
        return Batch(self._images, self._labels, samples, job.update, job.slot, job.epoch, len(job.indices))
