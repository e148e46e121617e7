"""`conveyor batch-find`: the largest micro-batch that memory holds and the fastest one, by running them."""

import argparse
import dataclasses
import json

from conveyor.errors import UserError
from conveyor.monitor.progress import say
from conveyor.options.parser import add, add_config, add_options, options_from
from conveyor.options.units import many, size_in_bytes

HELP = "Find the micro-batch that memory holds and the fastest one, by short runs here."
FREE_SHARE = 0.8
"""Of the memory that is free now: other programs and the feed of images need some, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [options]"
    asked = parser.add_argument_group("Search")
    asked.add_argument(
        "--sizes", nargs="+", type=int, default=[2, 8, 32], metavar="N", help="Micro-batches to run. [2 8 32]"
    )
    add(asked, "--most", 256, "N", "Largest micro-batch to try.")
    add(
        asked,
        "--memory",
        str,
        "SIZE",
        "Memory of a worker, such as 4GiB; default: what is free, shared by the workers.",
    )
    asked.add_argument("--json", action="store_true", help="One JSON object on standard output.")
    add_config(parser)
    add_options(parser, ("model", "data", "precision", "optimizer", "layout", "batch"))


def run(arguments: argparse.Namespace) -> int:
    from conveyor.plan.batch_size import find
    from conveyor.spec import resolve

    options = options_from(arguments)
    sizes = sorted(set(arguments.sizes))
    if len(sizes) < 2 or sizes[0] < 1 or arguments.most < sizes[-1]:
        raise UserError("--sizes needs at least two different micro-batches from 1 to --most")
    spec = resolve(options.replace(synthetic_data=True, task="one-label"))
    on_cpu = not spec.cuts_spans
    workers = spec.layout.workers if on_cpu else 1
    free = _free_bytes(on_cpu) if arguments.memory is None else size_in_bytes(arguments.memory)
    limit = (FREE_SHARE / workers if arguments.memory is None else 1.0) * free / 2**20
    quiet = arguments.json
    found = find(
        options.replace(threads=spec.layout.threads), limit, sizes, arguments.most,
        say=lambda line: None if quiet else print(line, flush=True),
    )  # fmt: skip
    if quiet:
        print(json.dumps({**dataclasses.asdict(found), "fastest": found.fastest.batch, "limit_mib": limit}))
        return 0
    say(
        f"a worker takes {found.fixed:.0f} MiB and {found.per_image:.2f} MiB for each image of the micro-batch; "
        f"{limit:.0f} MiB are there for each of {many(workers, 'worker')}"
    )
    end = (
        f"the largest one tried (--most {arguments.most}); memory would hold more"
        if found.capped
        else "run and checked"
    )
    say(f"largest: --micro-batch-size {found.largest} ({end})")
    say(f"fastest: --micro-batch-size {found.fastest.batch} ({found.fastest.rate:.1f} images/s in one worker)")
    if on_cpu:
        say("on a CPU memory is rarely the limit, and larger is not faster for long: take the fastest")
    say("the micro-batch changes the result: keep --global-batch-size to change --accumulation with it")
    return 0


def _free_bytes(on_cpu: bool) -> float:
    if on_cpu:
        import psutil

        from conveyor.layout import usable_memory

        return float(min(psutil.virtual_memory().available, usable_memory()))
    import torch

    return float(torch.cuda.mem_get_info()[0])
