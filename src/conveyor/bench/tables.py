"""The table and the plots of `benchmarks/README.md`, made from the records."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from conveyor.bench.records import Record, Sample, load_record
from conveyor.files import write_atomically

OURS = "conveyor rate"


def newest_records(folder: Path) -> dict[str, Record]:
    """The newest record of each name."""
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*.json")):
        record = load_record(path)
        if record.name not in found or record.time > found[record.name].time:
            found[record.name] = record
    return found


def peers_rows(records: Iterable[Record]) -> list[list[str]]:
    """One row for each contestant of each setting: rate, our ratio to it, who is ahead."""
    rows = []
    for record in records:
        ours = record.results.get(OURS)
        if ours is None:
            continue
        share = record.results.get("share of GEMM")
        roof = f"{share.median:.0f} % of GEMM" if share else ""
        rows.append([record.name, "**conveyor**", _spread(ours), "", roof])
        for metric, sample in record.results.items():
            if metric.endswith(" rate") and metric != OURS:
                peer = metric.removesuffix(" rate")
                ratio = record.results[f"ratio to {peer}"]
                verdict = "ahead" if ratio.low > 1 else "behind" if ratio.high < 1 else "even"
                rows.append(
                    ["", peer, _spread(sample), f"{ratio.median:.2f}x ({ratio.low:.2f}..{ratio.high:.2f})", verdict]
                )
        rows += [
            ["", peer, "-", "-", f"could not run: {why}"] for peer, why in record.conditions.get("absent", {}).items()
        ]
    return rows


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def write_page(folder: Path) -> Path:
    """`README.md` and the plots of the benchmark folder, from the newest record of each name."""
    records = newest_records(folder / "records")
    peers = [record for record in records.values() if OURS in record.results]
    others = [record for record in records.values() if OURS not in record.results]
    parts = ["# Benchmarks", "", INTRODUCTION, ""]
    if peers:
        parts += ["## Beside the peers", "", "![rates beside the peers](peers.svg)", ""]
        parts += [markdown(["setting", "program", "img/s (spread)", "conveyor / it", ""], peers_rows(peers)), ""]
        write_atomically(folder / "peers.svg", peers_chart(peers))
    if others:
        parts += ["## Other records", ""]
        rows = [[record.name, metric, str(sample)] for record in others for metric, sample in record.results.items()]
        parts += [markdown(["benchmark", "quantity", "median (spread)"], rows), ""]
    machines = {_machine(record) for record in records.values()}
    parts += ["## Machine", "", *sorted(machines), ""]
    page = folder / "README.md"
    write_atomically(page, "\n".join(parts))
    return page


INTRODUCTION = (
    "Made by `make bench` from the records beside it. All programs of a setting ran in one session in alternating rounds "
    "with the same model, batch and threads; warm-up is never timed; a ratio is taken round by round. A row in which a "
    "peer is ahead stays in the table."
)


def peers_chart(records: Sequence[Record]) -> str:
    """Horizontal bars: each program's rate relative to ours."""
    rows: list[tuple[str, str, float]] = []
    for record in records:
        ours = record.results[OURS].median
        for metric, sample in record.results.items():
            if metric.endswith(" rate"):
                rows.append((record.name, metric.removesuffix(" rate"), sample.median / ours))
    height, width, left = 18, 760, 330
    scale = (width - left - 60) / max(1.0, *(value for _, _, value in rows))
    box = f"0 0 {width} {height * (len(rows) + 1)}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="11">',
        "<style>text{fill:#333}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>",
    ]
    previous = ""
    for index, (setting, program, value) in enumerate(rows):
        y = index * height
        colour = "#2a7de1" if program == "conveyor" else "#9aa5b1"
        title = setting if setting != previous else ""
        previous = setting
        lines.append(f'<text x="0" y="{y + 12}">{escape(title)}</text>')
        lines.append(f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{escape(program)}</text>')
        lines.append(
            f'<rect x="{left}" y="{y + 2}" width="{value * scale:.1f}" height="{height - 5}" fill="{colour}"/>'
        )
        lines.append(f'<text x="{left + value * scale + 4:.1f}" y="{y + 12}">{value:.2f}</text>')
    lines.append("</svg>")
    return "\n".join(lines)


def _machine(record: Record) -> str:
    about = record.machine
    libraries = ", ".join(f"{name} {version}" for name, version in about.get("libraries", {}).items())
    return (
        f"- {about.get('processor')}, {about.get('cores')} cores, {about.get('memory_gib')} GiB, Python {about.get('python')}, "
        f"{libraries}"
    )


def _spread(sample: Sample) -> str:
    return f"{sample.median:.4g} ({sample.low:.4g}..{sample.high:.4g}, n={sample.n})"
