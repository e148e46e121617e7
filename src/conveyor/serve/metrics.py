"""Counters and histograms in Prometheus' form, in a registry of their own."""

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """What the server counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = functools.partial(Counter, registry=self.registry)
        gauge = functools.partial(Gauge, registry=self.registry)
        histogram = functools.partial(Histogram, registry=self.registry)
        self.requests = counter("conveyor_requests", "Requests by protocol and outcome.", ["protocol", "outcome"])
        self.images = counter("conveyor_images", "Images answered.")
        self.seconds = histogram("conveyor_request_seconds", "From arrival to answer.", ["protocol"], buckets=_SECONDS)
        self._phases = histogram(
            "conveyor_phase_seconds",
            "Time of a request in each phase: receive (its body), decode (to arrays), queue (until its batch), infer, encode; no gaps.",
            ["phase"],
            buckets=_SECONDS,
        )
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self.batch = histogram("conveyor_batch_images", "Images in a batch before padding.", buckets=sizes)
        self.padding = counter("conveyor_padding_images", "Zero images added to fill a batch.")
        self.queue = gauge("conveyor_queue_images", "Images waiting.")
        self.workers = gauge("conveyor_workers", "Engine processes alive.")
        self.restarts = counter("conveyor_worker_restarts", "Engine processes started again.")
        self.swaps = counter("conveyor_model_swaps", "New versions taken into service.")
        self.bad_versions = counter("conveyor_model_rejects", "New versions that could not be loaded.")
        self.disagreements = counter(
            "conveyor_model_disagreements", "New versions that gave other answers than --swap-agreement allows."
        )
        self.agreement = gauge(
            "conveyor_swap_agreement", "Share of equal answers of the last new version that was compared.", ["version"]
        )
        self.retries = counter("conveyor_model_retries", "Further tries to load such a version that failed too.")
        self.retry_pause = gauge(
            "conveyor_model_retry_seconds",
            "Pause before a version that could not be loaded is tried again; 0: there is none.",
        )
        self.model = gauge("conveyor_model", "1 for the version in service.", ["name", "version", "engine"])

    def phase(self, name: str, seconds: float) -> None:
        self._phases.labels(name).observe(seconds)

    def counted_batch(self, images: int, size: int) -> None:
        self.batch.observe(images)
        self.padding.inc(size - images)

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))
