"""docs/reliability.md: one row per attack, kept from earlier runs when only some are run."""

import datetime
import fcntl
import re
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "reliability.md"
HEAD = """# Reliability under attack

What `make conformance` does to Conveyor, and what came of it: each attack writes its own row here when it has succeeded in
nothing. All of them run on one machine and speak to loopback or to network namespaces of their own. The same cures have small tests of their own in
`make test`.

| attack | what is done | what has to hold | measured | when |
|---|---|---|---|---|
"""
ATTACKS = {
    "kills": (
        "SIGKILL of training in one process at random moments, over precisions and averages of the weights, and restoration",
        "every checkpoint that is visible is complete; the end is bit-identical to the undisturbed run",
    ),
    "jobs": (
        "SIGKILL of a job of several processes, or of one of its workers, over layouts, precisions and averages; restoration",
        "the same",
    ),
    "punisher": (
        (
            "one run of CIFAR-10 on changing layouts: workers and jobs killed, suspended and told to leave, the disk filled, "
            "checkpoints damaged, the clock set, the network cut between two machines"
        ),
        "the end and all log points are bit-identical to the undisturbed run",
    ),
    "week": (
        "100,000 updates of a tiny network, killed and restored several times, beside an undisturbed run",
        "bit-identical ends and log points; memory and open files of every process flat; the run folder no larger than its log points and kept checkpoints",
    ),
    "checkpoints": (
        "checkpoints with flipped bits, cut, lengthened, missing and exchanged files, and files forged with right checksums",
        "one sentence that names the checkpoint, exit code 2, nothing executed",
    ),
    "records": (
        "TFRecord files with flipped bits, cut, lengthened, repeated and exchanged pieces",
        "one sentence that names the file, exit code 2; `data verify` names it too",
    ),
    "requests": (
        "hostile requests over HTTP and gRPC beside a good client",
        "no 5xx and no gRPC code that means a failure of the server, flat memory, the good client is always answered",
    ),
    "clients": (
        "32 clients for 60 seconds through an engine kill, a broken version, a swap and SIGTERM",
        "every accepted request is answered, with the right numbers; exit code 0",
    ),
    "server": (
        "8 clients without pause while engines are killed, versions swapped, bad ones offered and peers hostile",
        "every request is answered, with the numbers of a version that was served; memory and open files flat",
    ),
    "token": (
        "attempts to pass the token over HTTP and gRPC",
        "none gets an answer that needs it",
    ),
    "rendezvous": (
        "a stranger at the rendezvous of a run: on one machine and across two network namespaces, with no and a wrong secret",
        "refused; nothing that arrives is executed",
    ),
}
ROW = re.compile(r"^\| (\w+) \|.*\| (.*) \| (.*) \|$", re.MULTILINE)


def write(attack: str, measured: str) -> None:
    """Put what was measured into the page; several test processes may do so at once."""
    with open(__file__) as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        rows = {match[1]: (match[2], match[3]) for match in ROW.finditer(text)}
        rows[attack] = (measured, datetime.datetime.now(datetime.UTC).date().isoformat())
        PAGE.write_text(page(rows), encoding="utf-8")


def page(rows: dict[str, tuple[str, str]]) -> str:
    lines = []
    for name, (done, holds) in ATTACKS.items():
        measured, when = rows.get(name, ("not run yet", ""))
        lines.append(f"| {name} | {done} | {holds} | {measured} | {when} |")
    return HEAD + "\n".join(lines) + "\n"
