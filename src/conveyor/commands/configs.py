"""`conveyor configs`: list the named configurations, or print one with all that it inherits."""

import argparse
import itertools
import json

from conveyor.errors import UserError
from conveyor.monitor.table import format_table
from conveyor.options import Options
from conveyor.options.coerce import to_plain
from conveyor.options.file import shipped

HELP = "List the named configurations; `configs show NAME` prints one resolved."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("list", "show"), default="list", help="what to do [list]")
    parser.add_argument("name", nargs="?", help="the configuration to show, or a part of the names to list")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "show":
        if arguments.name is None:
            raise UserError("which configuration? Write: conveyor configs show NAME")
        print(_json(arguments.name) if arguments.json else show(arguments.name))
        return 0
    names = [name for name in shipped().where if arguments.name is None or arguments.name in name]
    if not names:
        raise UserError(f"no configuration has {arguments.name!r} in its name: `conveyor configs` lists them all")
    print(json.dumps(names) if arguments.json else listing(names))
    return 0


def listing(names: list[str]) -> str:
    """One line per configuration, a table for each file: images of an update, devices it was made for, model and data."""
    tables = (
        format_table([f"{file}:", "batch", "devices", "model, data"], map(summary, of_file), rule=False, fold=True)
        for file, of_file in itertools.groupby(names, shipped().where.__getitem__)
    )
    return "\n\n".join(tables)


def summary(name: str) -> list[object]:
    from conveyor.topology import Topology

    options = Options().updated(shipped().resolve(name), name)
    topology, _ = Topology.from_options(options.batch)
    trained = " ".join(filter(None, (options.model.model, options.data.data)))
    return [f"  {name}", topology.global_batch, topology.devices, trained]


def show(name: str) -> str:
    """The configuration as YAML, with what it inherits."""
    import yaml

    values = {key.replace("_", "-"): value for key, value in shipped().resolve(name).items()}
    inherits = " <- ".join(shipped().chain(name)[1:])
    head = f"# {name}{inherits and f', from {inherits}'} ({shipped().where[name]})"
    return f"{head}\n{yaml.safe_dump(values, sort_keys=False, width=1000).rstrip()}"


def _json(name: str) -> str:
    options = Options().updated(shipped().resolve(name), name).check()
    return json.dumps({key: to_plain(value) for key, value in options.changed().items()}, indent=1)
