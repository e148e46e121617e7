"""The settings of a server. No torch here."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.infer import ENGINES
from conveyor.infer.asked_precision import AskedPrecision
from conveyor.options.coerce import checked
from conveyor.options.field import option

MIB = 1 << 20
MAX_INFLIGHT = 256 * MIB
NO_GRPC = -1


def check_token(token: str) -> None:
    """Refuse a token that no client could send in a header."""
    if not (token.isascii() and token.isprintable()):
        raise UserError(
            "the token is no single line of ASCII characters, so no request can carry it: `openssl rand -hex 32` makes one"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Every setting of `conveyor serve`; the defaults are safe on a laptop."""

    path: str
    checkpoint: str | None = None
    """Of a run: `best`, `last` or an update; none: `checkpoint.choice.DEFAULT`."""
    name: str | None = option(None, "Name of the model in addresses; default: that of the run or export.")
    host: str = option("127.0.0.1", "Address to listen on; 127.0.0.1: for this machine only.")
    host_name: tuple[str, ...] = option(
        (),
        "Further names by which callers reach this server, such as *.example.org: without a token, requests to other "
        "names than those, localhost and this machine's are refused. [none]",
        metavar="NAME",
    )
    port: int = option(8502, "HTTP port, 0 for a free one.", metavar="N", minimum=0, maximum=65535)
    grpc_port: int | None = option(
        None, "gRPC port, 0 for a free one; default: the one after --port.", metavar="N", minimum=NO_GRPC, maximum=65535
    )
    """-1: no gRPC."""
    engine: str = option(
        "auto", f"auto measures these and takes the fastest: {', '.join(ENGINES[1:])}.", choices=ENGINES, metavar="NAME"
    )
    infer_precision: str | None = None
    """float32, bfloat16, int8 or auto; none: an export's own, float32 for a run."""
    max_drop: float = 0.5
    """Percentage points of top-1 that another precision may cost."""
    data_dir: str | None = option(None, "Images for --infer-precision, when not where the run had them.", metavar="DIR")
    workers: int | None = option(
        None,
        "Engine processes; default: one per core, at most 8. 1 gives the lowest latency.",
        metavar="N",
        minimum=1,
    )
    threads: int | None = option(
        None, "Threads of each; default: the cores divided among the workers.", metavar="N", minimum=1
    )
    max_batch: int = option(16, "Images that are answered together at most.", metavar="N", minimum=1)
    batch_sizes: tuple[int, ...] = option(
        (), "Allowed batches, short ones are padded; default: powers of two.", metavar="N", minimum=1
    )
    delay_us: int = option(
        2000, "Microseconds that the first request of a batch waits for company.", metavar="N", minimum=0
    )
    queue: int = option(512, "Images that may wait; more are refused (429, RESOURCE_EXHAUSTED).", metavar="N")
    max_body: int = option(32 * MIB, "Bytes of the largest request.", minimum=1)
    max_pixels: int = option(50_000_000, "Largest photograph.", metavar="N", minimum=1)
    max_inflight: int = MAX_INFLIGHT
    """Bytes of request bodies held at the same time."""
    timeout: float = option(30.0, "Seconds for a request, from arrival to answer.", metavar="S", above=0)
    token: str | None = None
    tls_cert: str | None = option(None, "Certificate chain in PEM form.", metavar="FILE")
    tls_key: str | None = option(None, "Its private key in PEM form.", metavar="FILE")
    poll: float = option(2.0, "Seconds between looks for a new version, 0 never.", metavar="S", minimum=0)
    swap_agreement: float | None = option(
        None,
        "A new version is taken only if it answers this share of the last requests as they were answered, such as 0.98; "
        "default: it is not compared.",
        metavar="X",
        above=0,
        maximum=1,
    )
    swap_requests: int = option(200, "Images kept for that comparison.", metavar="N", minimum=1)
    drain_delay: float = option(
        0.5, "Seconds in which a stopping server still takes connections.", metavar="S", minimum=0
    )
    """Load balancers must notice in them."""
    drain: float = option(30.0, "Most seconds for requests under way when stopping.", metavar="S", minimum=0)
    ready_file: str | None = option(None, "Written with the addresses as JSON once the server answers.", metavar="FILE")

    def check(self) -> "ServeSettings":
        """Refuse values that cannot work, with all the numbers involved."""
        settings = checked(self)
        self.wanted()
        if self.name is not None and ("/" in self.name or not self.name.strip() or not self.name.isprintable()):
            raise UserError(
                f"--name {self.name!r} cannot be a part of an address: give a name without slashes and control characters"
            )
        if self.queue < max(self.sizes()):
            raise UserError(
                f"a queue of {self.queue} images cannot hold one batch of {max(self.sizes())}: raise --queue or lower --max-batch"
            )
        if self.max_inflight < self.max_body:
            raise UserError(
                f"--max-inflight {self.max_inflight} has no room for one request of --max-body {self.max_body} bytes"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UserError("TLS needs both files: give --tls-cert and --tls-key together")
        for file in (self.tls_cert, self.tls_key):
            if file and not Path(file).is_file():
                raise UserError(f"the TLS file {file} does not exist")
        if self.token is not None:
            if not self.token.strip():
                raise UserError("the token is empty: anybody could guess it")
            check_token(self.token)
        return settings

    def sizes(self) -> tuple[int, ...]:
        """The allowed batch sizes, ascending."""
        if self.batch_sizes:
            return tuple(sorted(set(self.batch_sizes)))
        powers = [1 << exponent for exponent in range(self.max_batch.bit_length()) if 1 << exponent < self.max_batch]
        return (*powers, self.max_batch)

    def wanted(self) -> AskedPrecision:
        return checked(AskedPrecision(self.infer_precision, self.max_drop, data_dir=self.data_dir))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ServeSettings":
        document: dict[str, Any] = json.loads(text)
        for name in ("batch_sizes", "host_name"):
            document[name] = tuple(document.get(name, ()))
        return cls(**document)
