"""Counters and histograms in Prometheus' form, in a registry of their own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """What the server counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "conveyor_requests", "Requests by protocol and outcome.", ["protocol", "outcome"], registry=self.registry
        )
        self.images = Counter("conveyor_images", "Images answered.", registry=self.registry)
        self.seconds = Histogram(
            "conveyor_request_seconds",
            "From arrival to answer.",
            ["protocol"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._phases = Histogram(
            "conveyor_phase_seconds",
            "Time of a request in each phase: receive (its body), decode (to arrays), queue (until its batch), infer, encode; no gaps.",
            ["phase"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.batch = Histogram(
            "conveyor_batch_images",
            "Images in a batch before padding.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.padding = Counter("conveyor_padding_images", "Zero images added to fill a batch.", registry=self.registry)
        self.queue = Gauge("conveyor_queue_images", "Images waiting.", registry=self.registry)
        self.workers = Gauge("conveyor_workers", "Engine processes alive.", registry=self.registry)
        self.restarts = Counter("conveyor_worker_restarts", "Engine processes started again.", registry=self.registry)
        self.swaps = Counter("conveyor_model_swaps", "New versions taken into service.", registry=self.registry)
        self.bad_versions = Counter(
            "conveyor_model_rejects", "New versions that could not be loaded.", registry=self.registry
        )
        self.disagreements = Counter(
            "conveyor_model_disagreements",
            "New versions that gave other answers than --swap-agreement allows.",
            registry=self.registry,
        )
        self.agreement = Gauge(
            "conveyor_swap_agreement",
            "Share of equal answers of the last new version that was compared.",
            ["version"],
            registry=self.registry,
        )
        self.retries = Counter(
            "conveyor_model_retries", "Further tries to load such a version that failed too.", registry=self.registry
        )
        self.retry_pause = Gauge(
            "conveyor_model_retry_seconds",
            "Pause before a version that could not be loaded is tried again; 0: there is none.",
            registry=self.registry,
        )
        self.model = Gauge(
            "conveyor_model", "1 for the version in service.", ["name", "version", "engine"], registry=self.registry
        )

    def phase(self, name: str, seconds: float) -> None:
        self._phases.labels(name).observe(seconds)

    def counted_batch(self, images: int, size: int) -> None:
        self.batch.observe(images)
        self.padding.inc(size - images)

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))
