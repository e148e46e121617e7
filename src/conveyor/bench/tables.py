"""Tables of records: the newest of each name, programs beside each other."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from conveyor.bench.records import OURS, Record, Sample, load_record, share_of

OUR_RATE = f"{OURS} rate"
LIMITS = ("GEMM", "memory bandwidth")
"""The machine's limits whose shares a record may hold."""
PEER_TITLES = ["setting", "program", "images/s (spread)", "conveyor / it", ""]


def newest_records(folder: Path) -> dict[str, Record]:
    """The newest record of each name."""
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*.json")):
        record = load_record(path)
        if record.name not in found or record.time > found[record.name].time:
            found[record.name] = record
    return found


def peers_rows(records: Iterable[Record]) -> list[list[str]]:
    """One row for each program of each setting: rate, our ratio to it, which is faster."""
    rows = []
    for record in records:
        ours = record.results.get(OUR_RATE)
        if ours is None:
            continue
        rows.append([record.name, f"**{OURS}**", _spread(ours), "", _share(record, OURS)])
        for metric, sample in record.results.items():
            peer = metric.removesuffix(" rate")
            if metric.endswith(" rate") and peer.startswith(f"{OURS} "):
                same = record.results.get(f"ratio at {peer.rpartition(' ')[2]}")
                about = f"{_ratio(same)} the fastest other in this precision" if same else ""
                rows.append(["", f"**{peer}**", _spread(sample), "", about])
            elif metric.endswith(" rate") and metric != OUR_RATE:
                ratio = record.results[f"ratio to {peer}"]
                verdict = "ahead" if ratio.low > 1 else "behind" if ratio.high < 1 else "even"
                verdict += " in the only round" if ratio.n == 1 else ""
                shown = _ratio(ratio)
                about = ", ".join(filter(None, [verdict, _share(record, peer)]))
                rows.append(["", peer, _spread(sample), shown, about])
        rows += [
            ["", peer, "-", "-", f"could not run: {why}"] for peer, why in record.conditions.get("absent", {}).items()
        ]
    return rows


def _ratio(ratio: Sample) -> str:
    return f"{ratio.median:.2f}x ({ratio.low:.2f}..{ratio.high:.2f})"


def _share(record: Record, program: str) -> str:
    limits = (*LIMITS, "bfloat16 GEMM")
    shares = ((limit, record.results.get(share_of(limit, program))) for limit in limits)
    return ", ".join(f"{share.median:.0f} % of {limit}" for limit, share in shares if share)


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _spread(sample: Sample) -> str:
    """Median, range and count of a sample; the unit only if it is not the column's (img/s)."""
    unit = "" if sample.unit == "img/s" else f" {sample.unit}"
    return f"{sample.median:.4g}{unit} ({sample.low:.4g}..{sample.high:.4g}, n={sample.n})"
