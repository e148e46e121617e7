"""`benchmarks/README.md` with its plots, made from the records, and the head of its table in the project's README."""

from collections.abc import Sequence
from pathlib import Path

from conveyor.bench import scaling, time_to_accuracy
from conveyor.bench.records import BEST_RATIO, OURS, Record, Sample
from conveyor.bench.tables import OUR_RATE, PEER_TITLES, markdown, newest_records, peers_rows
from conveyor.errors import UserError
from conveyor.files import write_atomically
from conveyor.monitor import svg

INTRODUCTION = (
    "Made by `make bench` from the records beside it. All programs of a setting ran in one session in alternating rounds "
    "with the same model, batch and threads; warm-up is never timed; a ratio is the median of the rounds' ratios, beside the "
    "medians of both rates in the same rounds. A row in which a peer is ahead stays in the table. A name without a precision "
    "is float32; `conveyor` of an inference setting is its fastest precision, those of each stand below it. A program far "
    "behind the others of its precision is left out of the later rounds; its n says so."
)
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
HEAD_KINDS = ("training", "inference", "data", "serving")
LEFT_OUT = "left out"


def write_page(folder: Path, readme: Path | None = None) -> Path:
    """The page and the plots of the benchmark folder, from the newest record of each name; returns the page's path.

    With `readme` the head of the table also goes between that file's markers.
    """
    records = newest_records(folder / "records")
    if not records:
        raise UserError(f"there are no records in {folder / 'records'}: run `conveyor bench` with this --out first")
    peers = [record for record in records.values() if OUR_RATE in record.results]
    peers.sort(
        key=lambda record: (_kind(record), record.conditions.get("model", ""), record.conditions.get("batch", 0))
    )
    varied = scaling.grouped(records.values())
    shown = {id(record) for members in varied.values() for record in members}
    recipes = [record for record in records.values() if record.conditions.get("kind") == time_to_accuracy.KIND]
    shown |= {id(record) for record in recipes}
    others = [record for record in records.values() if OUR_RATE not in record.results and id(record) not in shown]
    parts = ["# Benchmarks", "", INTRODUCTION, ""]
    if (folder / "plan.md").exists():
        parts += ["Predictions of `conveyor plan` beside measurements: [plan.md](plan.md).", ""]
    if peers:
        parts += ["## Beside the peers", "", "![rates beside the peers](peers.svg)", ""]
        parts += [markdown(PEER_TITLES, peers_rows(peers)), ""]
        write_atomically(folder / "peers.svg", peers_chart(peers))
    if recipes:
        parts += ["## Time to accuracy", ""]
        parts += [markdown(time_to_accuracy.TITLES, [time_to_accuracy.row(record) for record in recipes]), ""]
    for record in recipes:
        parts += [f"![{record.name}]({record.name}.svg)", ""]
        write_atomically(folder / f"{record.name}.svg", time_to_accuracy.chart(record))
    if varied:
        parts += ["## How cost grows", "", scaling.ABOUT, ""]
    for name, members in varied.items():
        title = name.replace("_", " ")
        parts += [f"### {title}", "", f"![{title}](growth-{name}.svg)", ""]
        parts += [markdown([scaling.axis(members), *scaling.TITLES], scaling.rows(members)), ""]
        write_atomically(folder / f"growth-{name}.svg", scaling.chart(members))
    if others:
        parts += ["## Limits and other records", ""]
        rows = [[record.name, metric, str(sample)] for record in others for metric, sample in record.results.items()]
        parts += [markdown(["benchmark", "quantity", "median (spread)"], rows), ""]
    missing = list(dict.fromkeys(line for record in records.values() for line in record.conditions.get(LEFT_OUT, ())))
    if missing:
        about = "For want of time, or because it failed; rows of it above come from runs of their own."
        parts += ["## Left out of the last `make bench`", "", about, "", *(f"- {line}" for line in missing), ""]
    parts += ["## Machine", "", *sorted({_machine(record) for record in records.values()}), ""]
    page = folder / "README.md"
    write_atomically(page, "\n".join(parts))
    if readme is not None:
        write_head(readme, peers, page)
    return page


def peers_chart(records: Sequence[Record]) -> str:
    """Each program's rate relative to ours."""
    rows = [
        (record.name, metric.removesuffix(" rate"), sample.median / record.results[OUR_RATE].median)
        for record in records
        for metric, sample in record.results.items()
        if (metric.endswith(" rate") and not metric.startswith(f"{OURS} ")) or metric == OUR_RATE
    ]
    return svg.standalone(svg.bars(rows, OURS, label="rates beside the peers"))


def head_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row for each setting: our rate, the fastest of the others, and our ratio to it."""
    rows = []
    for record in records:
        programs = [metric.removesuffix(" rate") for metric in record.results if metric.endswith(" rate")]
        ratios = {
            name: record.results[f"ratio to {name}"]
            for name in programs
            if f"ratio to {name}" in record.results and not name.startswith(OURS)
        }
        if not ratios:
            continue
        best = max(ratios, key=lambda name: record.results[f"{name} rate"].median)
        ratio = ratios[best]
        ours = record.results[OUR_RATE]
        ours = Sample(ours.unit, ours.values[: ratio.n])  # the rounds that both ran
        unit = "" if ours.unit == "img/s" else f" {ours.unit}"
        shown = f"{ours.median:.4g}{unit}"
        half = record.results.get(f"{OURS}, bfloat16 rate")
        if half is not None:
            shown += f"; bfloat16: {half.median:.4g}"
            # Each side in its fastest precision, in the same rounds.
            ratio = next((sample for name, sample in record.results.items() if name.startswith(BEST_RATIO)), ratio)
        rows.append(
            [
                record.name,
                shown,
                f"{best}: {record.results[f'{best} rate'].median:.4g}",
                f"{ratio.median:.2f}x ({ratio.low:.2f}..{ratio.high:.2f})",
            ]
        )
    return rows


def write_head(readme: Path, peers: Sequence[Record], page: Path) -> None:
    """Replace what stands between the markers of `readme` by the head of the table."""
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{readme} has no lines {BEGIN} and {END}: put them where the table should stand")
    rows = head_rows(peers)
    table = markdown(["setting", "conveyor, images/s", "the fastest other", "ratio (spread)"], rows)
    where = page.relative_to(readme.parent) if page.is_relative_to(readme.parent) else page
    about = f"{_machine(peers[0]).removeprefix('- ')}. All programs and rounds: [{where}]({where})." if peers else ""
    write_atomically(readme, f"{before}{BEGIN}\n{table if rows else ''}\n\n{about}\n{END}{after}")


def _kind(record: Record) -> int:
    kind = record.conditions.get("kind", "")
    return HEAD_KINDS.index(kind) if kind in HEAD_KINDS else len(HEAD_KINDS)


def _machine(record: Record) -> str:
    about = record.machine
    libraries = ", ".join(f"{name} {version}" for name, version in about.get("libraries", {}).items())
    return (
        f"- {about.get('processor')}, {about.get('cores')} cores, {about.get('memory_gib')} GiB, Python {about.get('python')}, "
        f"{libraries}"
    )
