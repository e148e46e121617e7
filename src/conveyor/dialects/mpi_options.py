"""What the options of an mpirun mean here, whether they stand before a program or in poprun's --mpi-...-args."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

PLAIN = ("--tag-output", "--oversubscribe", "--allow-run-as-root", "-v", "--verbose", "-q", "--quiet")
"""Options without a value."""
INTERFACES = ("btl_tcp_if_include", "oob_tcp_if_include")
"""MCA parameters that name an interface: of the data, and of the control messages, which counts where the first is missing."""
HOSTS, COUNTS = ("-H", "--host"), ("-n", "-np", "--np")


@dataclasses.dataclass(frozen=True, slots=True)
class MpiOptions:
    """Variables for every worker, the interface between machines, and what has no effect."""

    variables: Mapping[str, str]
    hosts: tuple[str, ...] = ()
    count: int = 0
    interface: str | None = None
    tagged: bool = False
    notes: tuple[str, ...] = ()


def split_options(words: Sequence[str]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Options, each with its values (long names with two dashes, as today's versions want them), and the program."""
    options: list[tuple[str, ...]] = []
    queue = list(words)
    while queue and queue[0].startswith("-"):
        word = queue.pop(0)
        long_name = re.fullmatch(r"-([a-z]+-[a-z-]+|mca)", word)
        word = f"--{long_name[1]}" if long_name else word
        count = 0 if word in PLAIN or "=" in word else 2 if word == "--mca" else 1
        options.append((word, *queue[:count]))
        del queue[:count]
    return options, queue


def read_options(words: Sequence[str], environment: Mapping[str, str]) -> MpiOptions:
    """The meaning of the options among `words`; `-x NAME` takes the variable's value here."""
    options, rest = split_options(words)
    variables, parameters = dict[str, str](), dict[str, str]()
    hosts, count, tagged = list[str](), 0, False
    notes, idle = list[str](), [*rest]
    for name, *values in options:
        value = values[0] if values else ""
        if name == "-x" and value:
            variable, equals, text = value.partition("=")
            if equals or variable in environment:
                variables[variable] = text if equals else environment[variable]
            else:
                notes.append(f"-x {variable}: the variable is not set here, so no worker gets it")
        elif name == "--mca" and values[:1] and values[0] in INTERFACES:
            parameters[value] = values[-1]
        elif name in HOSTS:
            hosts += [host.partition(":")[0] for host in value.split(",") if host]
        elif name in COUNTS and value.isdecimal():
            count = int(value)
        elif name == "--tag-output":
            tagged = True
        else:
            idle.append(" ".join((name, *values)))
    chosen = next((parameters[name] for name in INTERFACES if name in parameters), None)
    idle += [f"--mca {name} {value}" for name, value in parameters.items() if value != chosen]
    if idle:
        notes.append(f"no effect here: {', '.join(idle)}; workers get cores and ports of their own")
    return MpiOptions(variables, tuple(hosts), count, chosen, tagged, tuple(notes))
