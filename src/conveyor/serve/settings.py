"""The settings of a server. No torch here."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from conveyor.errors import UserError, did_you_mean
from conveyor.infer import ENGINES
from conveyor.infer.asked_precision import AskedPrecision
from conveyor.options.field import option

MIB = 1 << 20
MAX_INFLIGHT = 256 * MIB
NO_GRPC = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Every setting of `conveyor serve`; the defaults are safe on a laptop."""

    path: str
    checkpoint: str | None = None
    """Of a run: `best`, `last` or an update; none: `checkpoint.choice.DEFAULT`."""
    name: str | None = option(None, "Name of the model in addresses; default: that of the run or export.")
    host: str = "127.0.0.1"
    host_names: tuple[str, ...] = ()
    """Further names (or patterns such as `*.example.org`) that callers without a token may reach this server by."""
    port: int = option(8502, "HTTP port, 0 for a free one.", metavar="N")
    grpc_port: int | None = option(None, "gRPC port, 0 for a free one; default: the one after --port.", metavar="N")
    """-1: no gRPC."""
    engine: str = option("auto", "auto measures and takes the fastest.", metavar=f"{{{','.join(ENGINES)}}}")
    infer_precision: str | None = None
    """float32, bfloat16, int8 or auto; none: an export's own, float32 for a run."""
    max_drop: float = 0.5
    """Percentage points of top-1 that another precision may cost."""
    data_dir: str | None = option(None, "Images for --infer-precision, when not where the run had them.", metavar="DIR")
    workers: int | None = option(
        None, "Engine processes; default: one per core, at most 8. 1 gives the lowest latency.", metavar="N"
    )
    threads: int | None = option(None, "Threads of each; default: the cores divided among the workers.", metavar="N")
    max_batch: int = option(16, "Images that are answered together at most.", metavar="N")
    batch_sizes: tuple[int, ...] = ()
    """Batches are padded to one of these; none: powers of two up to `max_batch`."""
    delay_us: int = option(2000, "Microseconds that the first request of a batch waits for company.", metavar="N")
    queue: int = option(512, "Images that may wait; more are refused (429, RESOURCE_EXHAUSTED).", metavar="N")
    max_body: int = 32 * MIB
    max_pixels: int = option(50_000_000, "Largest photograph.", metavar="N")
    max_inflight: int = MAX_INFLIGHT
    """Bytes of request bodies held at the same time."""
    timeout: float = option(30.0, "Seconds for a request, from arrival to answer.", metavar="S")
    token: str | None = None
    tls_cert: str | None = option(None, "Certificate chain in PEM form.", metavar="FILE")
    tls_key: str | None = option(None, "Its private key in PEM form.", metavar="FILE")
    poll: float = option(2.0, "Seconds between looks for a new version, 0 never.", metavar="S")
    swap_agreement: float | None = option(
        None,
        "A new version is taken only if it answers this share of the last requests as they were answered, such as 0.98; "
        "default: it is not compared.",
        metavar="X",
    )
    swap_requests: int = option(200, "Images kept for that comparison.", metavar="N")
    drain_delay: float = option(0.5, "Seconds in which a stopping server still takes connections.", metavar="S")
    """Load balancers must notice in them."""
    drain: float = option(30.0, "Most seconds for requests under way when stopping.", metavar="S")
    ready_file: str | None = option(None, "Written with the addresses as JSON once the server answers.", metavar="FILE")

    def check(self) -> "ServeSettings":
        """Refuse values that cannot work, with all the numbers involved."""
        if self.engine not in ENGINES:
            raise UserError(f"there is no engine {self.engine!r}{did_you_mean(self.engine, ENGINES)}")
        self.wanted()
        for name, number, least in self._numbers():
            if not least <= number < math.inf:  # also catches NaN
                raise UserError(f"--{name} {number:g} cannot work: give at least {least:g}")
        if self.timeout == 0:
            raise UserError("--timeout 0 leaves no time for any answer: give the seconds that a request may take")
        if self.max_batch < 1 or any(size < 1 for size in self.batch_sizes):
            raise UserError("batch sizes must be at least 1")
        if self.queue < max(self.sizes()):
            raise UserError(
                f"a queue of {self.queue} images cannot hold one batch of {max(self.sizes())}: raise --queue or lower --max-batch"
            )
        if self.workers is not None and self.workers < 1:
            raise UserError(f"{self.workers} workers cannot serve anything: give at least 1")
        if self.max_inflight < self.max_body:
            raise UserError(
                f"--max-inflight {self.max_inflight} has no room for one request of --max-body {self.max_body} bytes"
            )
        if self.swap_agreement is not None and not 0 < self.swap_agreement <= 1:
            raise UserError(
                f"--swap-agreement {self.swap_agreement:g} is no share: give one above 0 and up to 1, as 0.98"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UserError("TLS needs both files: give --tls-cert and --tls-key together")
        for file in (self.tls_cert, self.tls_key):
            if file and not Path(file).is_file():
                raise UserError(f"the TLS file {file} does not exist")
        for port in (self.port, self.grpc_port or 0):
            if port != NO_GRPC and not 0 <= port <= 65535:
                raise UserError(f"port {port} does not exist: choose from 0 (any free one) to 65535")
        if self.token is not None and not self.token.strip():
            raise UserError("the token is empty: anybody could guess it")
        return self

    def _numbers(self) -> list[tuple[str, float, float]]:
        """(option, value, least value) of those that only need to be large enough."""
        return [
            ("threads", 1 if self.threads is None else self.threads, 1), ("delay-us", self.delay_us, 0),
            ("max-body", self.max_body, 1), ("max-pixels", self.max_pixels, 1), ("timeout", self.timeout, 0),
            ("poll", self.poll, 0), ("swap-requests", self.swap_requests, 1), ("drain", self.drain, 0), ("drain-delay", self.drain_delay, 0),
        ]  # fmt: skip

    def sizes(self) -> tuple[int, ...]:
        """The allowed batch sizes, ascending."""
        if self.batch_sizes:
            return tuple(sorted(set(self.batch_sizes)))
        powers = [1 << exponent for exponent in range(self.max_batch.bit_length()) if 1 << exponent < self.max_batch]
        return (*powers, self.max_batch)

    def wanted(self) -> AskedPrecision:
        return AskedPrecision(self.infer_precision, self.max_drop, data_dir=self.data_dir).check()

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ServeSettings":
        document: dict[str, Any] = json.loads(text)
        for name in ("batch_sizes", "host_names"):
            document[name] = tuple(document.get(name, ()))
        return cls(**document)
