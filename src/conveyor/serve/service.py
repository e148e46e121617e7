"""What both protocols call: the model in service, its replacement by a newer one, and the counts of requests."""

import asyncio
import contextlib
import dataclasses
import hmac
import logging
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conveyor.data.photo import fused
from conveyor.errors import UserError
from conveyor.options.units import many
from conveyor.serve import versions
from conveyor.serve.agreement import DisagreementError, Recent
from conveyor.serve.deadline import Limit
from conveyor.serve.errors import Late, NotFound, Overloaded, Refused, Unavailable
from conveyor.serve.metrics import Metrics
from conveyor.serve.model import ServedModel
from conveyor.serve.protocols import images as pictures
from conveyor.serve.settings import ServeSettings

DECODERS = min(32, (os.cpu_count() or 1) + 4)
"""Requests whose photographs are decoded at the same time: as many as there are threads, so that none waits
inside the library, which would keep its bytes even when its caller has disconnected."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before a version that could not be loaded is tried again; doubled each time."""
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class Asked:
    """One request under way: the version that answers it, its time limit, and the time it has taken."""

    model: ServedModel
    limit: Limit
    spent: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds by phase: receive, decode, queue, infer, encode."""
    photographs: list[bytes] = dataclasses.field(default_factory=list)
    """As they were sent, if they are needed for a comparison of versions."""
    start: float = dataclasses.field(default_factory=time.monotonic)
    latest: float = 0.0
    """The last reading of the clock: the phases are the differences of consecutive readings, without gaps."""

    def __post_init__(self) -> None:
        self.latest = self.start

    def spend(self, phase: str) -> float:
        """All time since the last reading belongs to `phase`; returns the seconds since the request began."""
        now = time.monotonic()
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self.latest
        self.latest = now
        return now - self.start

    def inferred(self, waits: list[float]) -> None:
        """Of the time since the last reading, the longest wait for a batch is `queue` and the rest is `infer`."""
        self.spent["queue"] = max(waits, default=0.0)
        self.spend("infer")
        self.spent["infer"] -= self.spent["queue"]


class Service:
    """One model name, one version of it in service at a time."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.draining = False
        self.refuses_calls_at: float | None = None
        """From when on gRPC calls are refused; each refused call sets it to its own time (monotonic seconds)."""
        self.accepted = self.answered = self.refused = self.cancelled = 0
        self.patience_ends: float | None = None
        """When a stopping server cancels requests that are still under way (monotonic seconds)."""
        self.bytes_held = 0
        self._decoders = asyncio.Semaphore(DECODERS)
        self._current: ServedModel | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._recent = None if settings.swap_agreement is None else Recent(settings.swap_requests)
        self.rejected: tuple[str, str] | None = None
        """A newer version that is not taken into service, and why."""

    async def start(self) -> None:
        """Load the newest version; afterwards look for newer ones."""
        await asyncio.to_thread(fused.library)  # tried once, before the first request waits for it
        self._current = await self._open(versions.newest(Path(self.settings.path), self.settings.checkpoint))
        self._announce(None, self._current)
        if self.settings.poll > 0:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    @property
    def ready(self) -> bool:
        return self._current is not None and not self.draining and self._current.pool.alive > 0

    def model(self, name: str | None = None, version: str | None = None) -> ServedModel:
        """The model in service, if it is the one that was asked for."""
        current = self._current
        if current is None:
            raise Unavailable("no model is loaded yet")
        if name and name != current.name:
            raise NotFound(f"there is no model {name[:60]!r} here: this server has {current.name!r}")
        if version and version not in (
            current.version,
            f"{int(current.version):03d}" if current.version.isdecimal() else "",
        ):
            why = f" ({self.rejected[1]})" if self.rejected is not None and self.rejected[0] == version else ""
            raise NotFound(
                f"version {version[:60]!r} of {current.name!r} is not in service{why}: {current.version!r} is"
            )
        return current

    async def infer(self, asked: Asked, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Logits from the model, within the time left. During an exchange the old version answers its own requests."""
        asked.spend("decode")
        waits = list[float]()
        try:
            answer = await asked.model.batcher.submit(images, waits.append)
        except asyncio.CancelledError:
            if asked.limit.up:
                raise Late(f"no answer within {asked.limit.seconds:g} seconds") from None
            raise
        self.metrics.images.inc(len(images))
        asked.inferred(waits)
        if self._recent is not None:
            labels = [asked.model.label(int(number)) for number in answer.argmax(1)]
            self._recent.keep(asked.photographs or list(images), labels)
        return answer

    async def decode(self, asked: Asked, contents: list[bytes]) -> NDArray[np.uint8]:
        """Encoded photographs as one batch, decoded beside the event loop."""
        if not contents:
            raise Refused("there is no image in the request")
        if len(contents) > self.settings.queue:
            raise Refused(f"{len(contents)} images in one request: at most {self.settings.queue} are accepted")
        most, preprocessing, limit = self.settings.max_pixels, asked.model.preprocessing, asked.limit
        late = Late(f"the photographs could not be decoded within {limit.seconds:g} seconds")
        waiting = list(contents)

        def one(content: bytes) -> NDArray[np.uint8]:
            if limit.left < 0:  # hundreds of small files of many pixels would keep a thread for minutes
                raise late
            return pictures.decode(content, preprocessing, most)

        def all_of_them() -> NDArray[np.uint8]:
            return np.stack([one(content) for content in waiting])

        try:
            async with self._decoders:
                work = asyncio.ensure_future(asyncio.to_thread(all_of_them))
                try:
                    decoded = await asyncio.shield(work)
                    asked.photographs = contents if self._recent is not None else []
                    return decoded
                finally:
                    if not work.done():  # the caller has gone: the thread stops, and until then its bytes count
                        waiting.clear()
                        await asyncio.wait([work])
                        work.exception()
        except asyncio.CancelledError:
            if limit.up:
                raise late from None
            raise

    def allows(self, authorization: bytes) -> bool:
        """Whether a request with this `authorization` header may pass: it carries the token, or none is needed."""
        token = self.settings.token
        scheme, _, given = authorization.partition(b" ")
        return token is None or (scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token.encode()))

    @property
    def lost(self) -> int:
        """Requests that were accepted and neither answered, refused, nor cancelled by their callers."""
        return self.accepted - self.answered - self.refused - self.cancelled

    def hold(self, count: int) -> None:
        """Account for bytes of a body in memory; refuses when all bodies together exceed the limit."""
        if self.bytes_held + count > self.settings.max_inflight:
            raise Overloaded("too many bytes of other requests are in memory: try again later")
        self.bytes_held += count

    def release(self, count: int) -> None:
        self.bytes_held -= count

    @contextlib.contextmanager
    def holding(self, count: int) -> Iterator[None]:
        """`hold` for the body of a `with` statement."""
        self.hold(count)
        try:
            yield
        finally:
            self.release(count)

    @contextlib.contextmanager
    def request(
        self, protocol: str, limit: Limit, name: str | None = None, version: str | None = None
    ) -> Iterator[Asked]:
        """Around one request: counts it, and keeps the version that it gets in service until it is answered."""
        begun, outcome = time.monotonic(), "failed"
        self.accepted += 1
        try:
            model = self.model(name, version)
            model.requests += 1
            asked = Asked(model, limit)
            try:
                yield asked
                asked.spend("encode")
                for phase, seconds in asked.spent.items():
                    self.metrics.phase(phase, seconds)
            finally:
                model.requests -= 1
            outcome = "ok"
            self.answered += 1
        except Refused as error:
            outcome = error.outcome
            self.refused += 1
            raise
        except asyncio.CancelledError:
            stops = self.patience_ends is not None and time.monotonic() >= self.patience_ends
            if not stops:  # not by this server: a gRPC caller that does not wait any longer
                outcome = "cancelled"
                self.cancelled += 1
            raise
        finally:
            self.metrics.requests.labels(protocol, outcome).inc()
            self.metrics.seconds.labels(protocol).observe(time.monotonic() - begun)

    async def close(self) -> None:
        """Answer everything, then end all processes."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._current is not None:
            await self._current.close()

    def metrics_text(self) -> bytes:
        if self._current is not None:
            self.metrics.queue.set(self._current.batcher.images_waiting)
            self.metrics.workers.set(self._current.pool.alive)
        return self.metrics.text()

    async def _open(self, version: versions.Version) -> ServedModel:
        """A version, started. The name of the first one stays: clients use it in their URLs."""
        model = ServedModel(version, self.settings, self.metrics)
        try:
            await model.start(self._current.name if self._current is not None else None)
        except BaseException:
            await model.pool.stop()
            raise
        return model

    async def _watch(self) -> None:
        """Take newer versions into service; one that cannot be loaded is tried again, with growing pauses.

        It may be broken for good, or its engine was killed for lack of memory that is free a minute later.
        """
        assert self._current is not None
        clock = asyncio.get_running_loop().time
        failed, pause, again, trouble = self._current.stamp, 0.0, 0.0, ""
        while True:
            await asyncio.sleep(self.settings.poll)
            try:
                found = await asyncio.to_thread(versions.newest, Path(self.settings.path), self.settings.checkpoint)
            except (UserError, OSError) as error:  # moved or unreachable: there is no version to report as refused
                if str(error) != trouble:
                    _logger.warning("the version in service stays: %s", error)
                trouble = str(error)
                continue
            trouble = ""
            if found.stamp == self._current.stamp:
                self.rejected = None
                self.metrics.retry_pause.set(0)
                continue
            if found.stamp == failed and clock() < again:
                continue
            try:
                fresh = await self._open(found)
                await self._compare(fresh)
            except DisagreementError as error:  # until it is written anew, it stays so
                failed, again = found.stamp, math.inf
                self.metrics.disagreements.inc()
                self._reject(found, str(error))
                continue
            except Exception as error:  # whatever error a broken version causes, the current one stays in service
                known = found.stamp == failed
                (self.metrics.retries if known else self.metrics.bad_versions).inc()
                failed, pause = found.stamp, min(2 * pause, LONGEST_PAUSE) if known else SHORTEST_PAUSE
                again = clock() + pause
                self.metrics.retry_pause.set(pause)
                self._reject(found, f"{_words(error)}; next try in {pause:g} s")
                continue
            self.rejected = None
            old, self._current = self._current, fresh
            self.metrics.swaps.inc()
            self._announce(old, fresh)
            task = asyncio.get_running_loop().create_task(old.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _compare(self, fresh: ServedModel) -> None:
        """Refuse a version that answers the last requests differently from what was answered."""
        least, recent = self.settings.swap_agreement, self._recent
        if least is None or recent is None:
            return
        if not len(recent):
            _logger.warning("version %s is taken without a comparison: nothing was asked yet", fresh.version)
            return
        try:
            count, share = len(recent), await recent.agreement(fresh, self.settings.max_pixels)
            self.metrics.agreement.clear()
            self.metrics.agreement.labels(fresh.version).set(share)
            if share < least:
                raise DisagreementError(
                    f"{100 * share:.2f} % of its answers to the last {many(count, 'image')} are those that were given, "
                    f"--swap-agreement asks for {100 * least:g} %"
                )
            _logger.warning("version %s gives %.2f %% of the last %d answers too", fresh.version, 100 * share, count)
        except BaseException:
            await fresh.close()
            raise

    def _reject(self, found: versions.Version, why: str) -> None:
        name = found.path.name
        self.rejected = (str(int(name)) if name.isdecimal() else name, why)
        _logger.warning("%s was not taken into service: %s", found.path, why)

    def _announce(self, old: ServedModel | None, new: ServedModel) -> None:
        if old is not None:
            self.metrics.model.remove(old.name, old.version, old.described["engine"])
            _logger.warning("version %s of %s is in service, %s leaves", new.version, new.name, old.version)
            shapes = [" x ".join(map(str, one.preprocessing.image_shape)) for one in (old, new)]
            if (old.labels, old.num_classes) != (new.labels, new.num_classes):
                _logger.warning("its classes are others: %d, and they were %d", new.num_classes, old.num_classes)
            if shapes[0] != shapes[1]:
                _logger.warning("it takes arrays of %s, and no longer of %s", shapes[1], shapes[0])
        self.metrics.model.labels(new.name, new.version, new.described["engine"]).set(1)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {error}"
