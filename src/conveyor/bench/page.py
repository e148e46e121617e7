"""`benchmarks/README.md` with its plots, made from the records, and the head of its table in the project's README."""

from collections.abc import Sequence
from pathlib import Path

from conveyor.bench import scaling, time_to_accuracy
from conveyor.bench.records import OURS, Record, Sample, fastest, sides
from conveyor.bench.tables import OUR_RATE, PEER_TITLES, compared, markdown, newest_records, peers_rows, rates
from conveyor.errors import UserError
from conveyor.files import write_atomically
from conveyor.measure.processor import FEATURES
from conveyor.monitor import svg

INTRODUCTION = (
    "Made by `make bench` from the records beside it. All programs of a setting ran in one session in alternating rounds "
    "with the same model, batch and threads; warm-up is never timed; a ratio is the median of the rounds' ratios. Where the quotient "
    "of the two medians in the table says something else (`of the medians`), the machine's speed changed between the rounds, or "
    "one of the two did not run in all of them. A row in which a peer is ahead stays in the table. A name without a precision "
    "is float32. Each kind of processor has the newest record of its own, with its commit. A program far behind the others of its "
    "precision does not run the later rounds; its n says so."
)
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
HEAD_KINDS = ("training", "inference", "data", "serving")
LEFT_OUT = "left out"


def write_page(folder: Path, readme: Path | None = None) -> Path:
    """The page and the plots of the benchmark folder, from the newest record of each name; returns the page's path.

    With `readme` the head of the table also goes between that file's markers.
    """
    records = list(newest_records(folder / "records").values())
    if not records:
        raise UserError(f"there are no records in {folder / 'records'}: run `conveyor bench` with this --out first")
    of_each_processor = newest_records(folder / "records", lambda one: f"{one.name} on {one.machine.get('processor')}")
    peers = [record for record in of_each_processor.values() if OUR_RATE in record.results]
    peers.sort(
        key=lambda record: (_kind(record), record.conditions.get("model", ""), record.conditions.get("batch", 0))
    )
    varied = scaling.grouped(records)
    placed = {id(record) for members in varied.values() for record in members}
    recipes = [record for record in records if record.conditions.get("kind") == time_to_accuracy.KIND]
    placed |= {id(record) for record in recipes}
    others = [record for record in records if OUR_RATE not in record.results and id(record) not in placed]
    parts = ["# Benchmarks", "", INTRODUCTION, ""]
    if (folder / "plan.md").exists():
        parts += ["Predictions of `conveyor plan` beside measurements: [plan.md](plan.md).", ""]
    if peers:
        parts += ["## Beside the peers", "", "![rates beside the peers](peers.svg)", ""]
        rows = []
        for record in peers:
            first, *others_of_it = peers_rows([record])
            first[0] += f"<br>{record.machine.get('processor')}, {record.machine.get('commit')}, {record.time[:10]}"
            rows += [first, *others_of_it]
        parts += [markdown(PEER_TITLES, rows), ""]
        write_atomically(folder / "peers.svg", peers_chart(_newest(peers)))
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
        parts += [markdown(scaling.titles(members), scaling.rows(members)), ""]
        write_atomically(folder / f"growth-{name}.svg", scaling.chart(members))
    if others:
        parts += ["## Limits and other records", ""]
        rows = [[record.name, metric, str(sample)] for record in others for metric, sample in record.results.items()]
        parts += [markdown(["benchmark", "quantity", "median (spread)"], rows), ""]
    missing = list(dict.fromkeys(line for record in records for line in record.conditions.get(LEFT_OUT, ())))
    if missing:
        about = "For want of time, or because it failed; rows of it above come from runs of their own."
        parts += ["## Left out of the last `make bench`", "", about, "", *(f"- {line}" for line in missing), ""]
    parts += ["## Machine", "", *sorted({_machine(record) for record in records}), ""]
    page = folder / "README.md"
    write_atomically(page, "\n".join(parts))
    if readme is not None:
        write_head(readme, peers, page)
    return page


def peers_chart(records: Sequence[Record]) -> str:
    """Each program's rate relative to our fastest."""
    rows = []
    for record in records:
        ours, others = sides(rates(record))
        best = fastest(ours)
        rows += [
            (record.name, OURS if name == best else name, sample.median / ours[best].median)
            for name, sample in rates(record).items()
            if name == best or name in others
        ]
    return svg.standalone(svg.bars(rows, OURS, label="rates beside the peers"))


def head_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row for each setting: our fastest, the fastest of the others, the ratio, of the rounds that both ran; where."""
    rows = []
    for record in records:
        ours, others = sides(rates(record))
        if not others:
            continue
        mine, theirs = fastest(ours), fastest(others)
        shared = min(ours[mine].n, others[theirs].n)
        first, second = (Sample(one.unit, one.values[:shared]) for one in (ours[mine], others[theirs]))
        cells = [_cell(mine.removeprefix(OURS).lstrip(", "), first), _cell(theirs, second)]
        where = f"{record.machine.get('processor')}, {record.time[:10]}"
        rows.append([record.name, *cells, compared(first, second), where])
    return rows


def _cell(name: str, sample: Sample) -> str:
    """The median, after the program's name."""
    unit = "" if sample.unit == "img/s" else f" {sample.unit}"
    return f"{name}{': ' if name else ''}{sample.median:.4g}{unit}"


def write_head(readme: Path, peers: Sequence[Record], page: Path) -> None:
    """Replace what stands between the markers of `readme` by the head of the table."""
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{readme} has no lines {BEGIN} and {END}: put them where the table should stand")
    rows = head_rows(_newest(peers))
    table = markdown(["setting", "our fastest, images/s", "the fastest other", "ratio (spread)", "measured on"], rows)
    where = page.relative_to(readme.parent) if page.is_relative_to(readme.parent) else page
    about = (
        "`of the medians`: the speed of the machine changed between the rounds. " if "of the medians" in table else ""
    )
    about += f"All programs, rounds and versions: [{where}]({where})." if peers else ""
    write_atomically(readme, f"{before}{BEGIN}\n{table if rows else ''}\n\n{about}\n{END}{after}")


def _newest(peers: Sequence[Record]) -> list[Record]:
    """The newest record of each setting, in their order, of processors with the instructions of the one measured last."""
    known = set(FEATURES.values())
    instructions = [known.intersection(str(record.machine.get("processor")).split()) for record in peers]
    by_time = sorted(range(len(peers)), key=lambda place: peers[place].time)
    newest = {peers[place].name: place for place in by_time if instructions[place] == instructions[by_time[-1]]}
    return [peers[place] for place in sorted(newest.values())]


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
