"""Tables of records: the newest of each name, programs beside each other."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from conveyor.bench.records import OURS, Record, Sample, alike, fastest, load_record, ratio, share_of, sides

OUR_RATE = f"{OURS} rate"
LIMITS = ("GEMM", "memory bandwidth")
"""The machine's limits whose shares a record may hold."""
APART = 0.03
"""Between the median of the rounds' ratios and the quotient of the two medians: beyond, both are shown."""
PEER_TITLES = ["setting", "program", "images/s (spread)", "ours, same precision / it", "our fastest / it", ""]


def newest_records(folder: Path, key: Callable[[Record], str] = lambda record: record.name) -> dict[str, Record]:
    """The newest record of each name, or of each `key`."""
    records = sorted(map(load_record, sorted(folder.glob("*.json"))), key=lambda record: record.time)
    return {key(record): record for record in records}


def rates(record: Record) -> dict[str, Sample]:
    """Each program's rates by round, without the second entry of our fastest that records of inference hold."""
    found = {name.removesuffix(" rate"): sample for name, sample in record.results.items() if name.endswith(" rate")}
    if any(name.startswith(f"{OURS} ") for name in found):
        del found[OURS]
    return found


def peers_rows(records: Iterable[Record]) -> list[list[str]]:
    """One row for each program of each setting: its rate, and the ratio to it of ours in its precision and of our fastest."""
    rows = []
    for record in records:
        ours, others = sides(rates(record))
        if not ours:
            continue
        mine = [["", f"**{name}**", _spread(sample), "", "", _share(record, name)] for name, sample in ours.items()]
        mine[0][0] = record.name
        rows += mine
        for peer, sample in others.items():
            own = alike(ours, peer)
            best = ratio(ours[fastest(ours)], sample)
            verdict = "ahead" if best.low > 1 else "behind" if best.high < 1 else "even"
            verdict += " in the only round" if best.n == 1 else ""
            same = compared(own[fastest(own)], sample) if own else ""
            rows.append(["", peer, _spread(sample), same, compared(ours[fastest(ours)], sample), verdict])
        rows += [
            ["", peer, "-", "-", "-", f"could not run: {why}"]
            for peer, why in record.conditions.get("absent", {}).items()
        ]
    return rows


def compared(ours: Sample, other: Sample) -> str:
    """The median of the rounds' ratios and its range; also the quotient of the two rates, where a reader finds another."""
    found, quotient = ratio(ours, other), ours.median / other.median
    text = f"{found.median:.2f}x ({found.low:.2f}..{found.high:.2f})"
    return text if abs(quotient / found.median - 1) <= APART else f"{text}; of the medians {quotient:.2f}x"


def _share(record: Record, program: str) -> str:
    shares = ((limit, record.results.get(share_of(limit, program))) for limit in (*LIMITS, "bfloat16 GEMM"))
    return ", ".join(f"{share.median:.0f} % of {limit}" for limit, share in shares if share)


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _spread(sample: Sample) -> str:
    """Median, range and count of a sample; the unit only if it is not the column's (img/s)."""
    unit = "" if sample.unit == "img/s" else f" {sample.unit}"
    return f"{sample.median:.4g}{unit} ({sample.low:.4g}..{sample.high:.4g}, n={sample.n})"
