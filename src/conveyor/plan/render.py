"""Plans and forecasts as text for a terminal."""

import re
import shutil
from collections.abc import Sequence

from conveyor.monitor.gantt import characters
from conveyor.monitor.records import readable_rate, readable_time
from conveyor.monitor.table import NO_TERMINAL, format_table
from conveyor.options.units import many
from conveyor.plan.choose import Proposal
from conveyor.plan.simulator import Finish, Forecast


def proposals(found: Sequence[Proposal], limit: int) -> str:
    """The best proposals, one line each."""
    rows = [
        [
            str(number), one.layout, str(one.micro_batch), str(one.slots // one.lanes), one.schedule, one.recompute,
            readable_rate(one.images_per_second), f"{100 * one.bubble:.1f} %", f"{one.peak_memory / 2**20:,.0f}".replace(",", " "),
            " ".join(one.split_names),
        ]
        for number, one in enumerate(found[:limit], start=1)
    ]  # fmt: skip
    head = [
        "", "layout", "micro\nbatch", "accumu-\nlation", "schedule", "recom-\npute", "img/s", "bubble", "MiB/device", "splits",
    ]  # fmt: skip
    return format_table(head, rows, rule=False, fold=True)


def stages(one: Proposal) -> str:
    """The stages of a proposal."""
    rows = [
        [
            str(number), many(stage.stop - stage.start, 'unit'), f"{1e3 * stage.forward:.2f}", f"{1e3 * stage.backward:.2f}",
            f"{stage.weight_bytes / 2**20:.1f}", f"{memory / 2**20:.0f}", f"{stage.output_bytes / 2**20:.2f}",
        ]
        for number, (stage, memory) in enumerate(zip(one.stages, one.memory, strict=True))
    ]  # fmt: skip
    head = ["stage", "size", "forward ms", "backward ms", "weights MiB", "memory MiB", "sends MiB"]
    return format_table(head, rows, rule=False)


def picture(one: Proposal, width: int = 73) -> str:
    """The timetable of one lane with a few slots: digits are forward passes, letters backward passes, dots idle."""
    return "\n".join(characters(one.spans(shown_slots(one)), width))


def shell(command: str) -> str:
    """A command over several lines, an option a line where it does not fit, that a shell takes as one."""
    first, *words = re.split(" (?=--)", command)
    lines = [first]
    for word in words:
        if len(lines[-1]) + len(word) + 3 > shutil.get_terminal_size(NO_TERMINAL).columns:
            lines.append(f"   {word}")
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines)


def shown_slots(one: Proposal) -> int:
    """Enough slots to see the pipeline fill, run and drain."""
    return min(-(-one.slots // one.lanes), 2 * one.depth + 2)


def forecasts(found: Sequence[Forecast]) -> str:
    rows = [
        [
            str(one.devices), str(one.replicas), str(one.stages), str(one.accumulation), str(one.global_batch),
            f"{1e3 * one.update_seconds:.1f}", f"{1e3 * one.reduce_seconds:.2f}", f"{100 * one.bubble:.1f} %",
            readable_rate(one.images_per_second), f"{100 * one.efficiency:.1f} %",
        ]
        for one in found
    ]  # fmt: skip
    head = [
        "de-\nvices", "repli-\ncas", "stages", "accumu-\nlation", "global\nbatch", "update\nms", "exch.\nms", "bubble", "img/s",
        "effi-\nciency",
    ]  # fmt: skip
    return format_table(head, rows, rule=False)


def curve(found: Sequence[Forecast], width: int = 44) -> str:
    """Throughput against devices as bars; a dot marks what perfect scaling of the first would give."""
    if len(found) < 2:
        return ""
    per_device = found[0].images_per_second / found[0].devices
    highest = max(max(one.images_per_second, per_device * one.devices) for one in found)
    lines = []
    for one in found:
        bar = round(width * one.images_per_second / highest)
        ideal = min(width - 1, round(width * per_device * one.devices / highest) - 1)
        line = list("█" * bar + " " * (width - bar))
        if ideal >= bar:
            line[ideal] = "·"
        lines.append(f"{one.devices:>6} {''.join(line)} {readable_rate(one.images_per_second)} img/s")
    return "\n".join(lines)


def finish(one: Finish) -> str:
    text = f"{readable_time(one.work)} of work, a checkpoint every {readable_time(one.interval)}: "
    if one.failures == 0:
        return text + f"done in {readable_time(one.mean)}"
    return text + (
        f"done in {readable_time(one.mean)} on average ({readable_time(one.low)} to {readable_time(one.high)} in nine of ten "
        f"runs; formula {readable_time(one.expected)}), {one.failures:.1f} failures, {100 * one.goodput:.1f} % of the time useful"
    )
