"""Notice that another worker is gone within seconds, under launchers that do not tell.

gloo reports a dead process only to those that wait for it, and a machine without power or network to nobody for half an
hour. So every worker tells worker 0's store once a second that it lives, and is told who does not: one whose connection
was closed before it told that it ends, or (across machines) one that was silent while worker 0 told `SILENT_BEATS` times. Time is
counted in worker 0's own beats: a job that is suspended as a whole loses nobody.
"""

import logging
import os
import sys
import threading

import torch.distributed as dist

from conveyor.launch import failure
from conveyor.launch.store import Store

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
SILENT_BEATS = 20
OWN_WAY_SECONDS = 5.0
"""For the worker to find out by itself and leave in order, before this process is ended."""

_running: list["Watch"] = []


class Watch:
    """A thread that tells and is told; it ends the process when another worker is gone and nothing else does."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._done = threading.Event()
        _running.append(self)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def close(self, *, in_order: bool = True) -> None:
        """Not `in_order`: the others take this worker for lost."""
        self._done.set()
        if in_order:
            try:
                self._store.leave(self._rank)
            except dist.DistNetworkError:
                log.debug("worker 0 has left already")
        self._store.close()
        if self in _running:
            _running.remove(self)

    def _watch(self) -> None:
        lost = None
        while lost is None and not self._done.wait(BEAT_SECONDS):
            try:
                lost = self._store.beat(self._rank)
            except dist.DistNetworkError:
                lost = 0
        if lost is None or self._done.wait(OWN_WAY_SECONDS):
            return
        error = dist.DistNetworkError(f"worker {lost} is gone")
        log.warning("worker %d: worker %d is gone", self._rank, lost)
        code = failure.record(error, os.environ)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def abandon() -> None:
    """This worker failed: tell its peers; the process goes on, because a caller may have more to do in it."""
    for one in list(_running):
        one.close(in_order=False)
