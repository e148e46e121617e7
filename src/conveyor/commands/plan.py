"""`conveyor plan`: the best layout of a model on some devices, or a forecast for another cluster."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from conveyor.errors import UserError
from conveyor.monitor.progress import folded
from conveyor.options import Options
from conveyor.options.parser import add, add_config, add_options, count, options_from
from conveyor.options.units import many, size_in_bytes

HELP = "Propose splits, micro-batch, recomputation and layout; forecast throughput, also for clusters."
PICTURE_SLOTS = 16
CLUSTER = (8, 64, 1024)
"""Devices for which `--cluster` forecasts."""
SHARED_CORES = (
    "{devices} workers share the {cores} cores of this machine, and so the speed; "
    "for devices of their own: --simulate devices={devices}"
)
EXAMPLES = """\
examples:
  conveyor plan --model resnet50 --devices 4 --memory 900MiB --global-batch 256
  conveyor plan --model resnet20 --image-size 32 --devices 2 --measure
  conveyor plan --model resnet50 --micro-batch-size 128 --cluster devices=8 \\
      tflops=150 link=800Gbit mtbf=4000h storage=40GB/s
  conveyor plan --model resnet50 --stages 4 --accumulation 16 --simulate \\
      hosts=4 devices=16 link=100Gbit --scaling 16 64 128
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage, parser.description, parser.epilog = f"{parser.prog} [options]", folded(HELP), EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    asked = parser.add_argument_group("Plan")
    add(asked, "--devices", int, "N", "Workers to plan for; default: those of this machine.", count)
    there = "Memory of each device, such as 900MiB; default: what there is, shared by the workers of a CPU."
    add(asked, "--memory", str, "SIZE", there)
    asked.add_argument("--measure", action="store_true", help="Measure the units here instead of estimating them.")
    asked.add_argument(
        "--check",
        nargs="*",
        metavar="LAYOUT",
        help="Measure, predict some layouts (all, or these), run them, and compare.",
    )
    add(asked, "--rounds", 3, "N", "With --check: how often each is run.", count)
    add(asked, "--top", 5, "N", "Proposals to show.", count)
    asked.add_argument("--picture", "--out", metavar="FILE.svg", help="Draw the best proposal's timetable.")
    asked.add_argument("--json", action="store_true", help="One JSON object on standard output.")
    asked.add_argument(
        "--simulate", nargs="+", metavar="KEY=VALUE",
        help="A cluster: hosts, devices (per host), link, inner, latency, tflops, memory, straggler, slow, slow_factor, "
        "overlap, reduce, storage, image, mtbf, save, restart, interval, recovery, seed.",
    )  # fmt: skip
    asked.add_argument(
        "--cluster", nargs="*", metavar="KEY=VALUE",
        help=f"As --simulate, for {', '.join(f'{count:,}' for count in CLUSTER)} devices unless --scaling says others.",
    )  # fmt: skip
    asked.add_argument(
        "--scaling", nargs="+", type=count, metavar="N", help="With --simulate: forecast for these numbers of devices."
    )
    add_config(parser)
    add_options(parser, ("model", "batch", "layout", "data", "precision", "optimizer", "length"))


def run(arguments: argparse.Namespace) -> int:
    options = options_from(arguments)
    if arguments.cluster is not None:
        if arguments.simulate:
            raise UserError("--cluster and --simulate describe the same thing: give one of them")
        arguments.simulate, arguments.scaling = arguments.cluster or ["hosts=1"], arguments.scaling or list(CLUSTER)
    if arguments.scaling and not arguments.simulate:
        raise UserError("--scaling belongs to --simulate: say what the cluster is like")
    act = simulate if arguments.simulate else check if arguments.check is not None else propose
    result = act(arguments, options)
    if arguments.json:
        print(json.dumps(result["json"], indent=1))
    else:
        print(result["text"])
    return 0


def propose(arguments: argparse.Namespace, options: Options) -> dict[str, Any]:
    """The table of the best layouts on devices like those here."""
    from conveyor.data.subject import planned
    from conveyor.layout import Machine
    from conveyor.plan import planner, render
    from conveyor.plan.timetable import LIKE

    about, hardware = planned(options), planner.hardware_here(options)
    machine = Machine.here(options.layout.device)
    devices = arguments.devices or machine.accelerators or machine.cores
    memory = float(size_in_bytes(arguments.memory)) if arguments.memory else None
    asked = planner.wanted(options, devices, memory, given(arguments, options))
    if memory is None:
        memory = hardware.memory_of_worker(asked.devices)
    asked = dataclasses.replace(asked, memory=memory)
    model = planner.cost_model(
        options,
        about,
        hardware,
        measure=arguments.measure,
        workers=asked.devices,
        batch=measured_batch(arguments, options),
        global_batch=asked.global_batch,
    )
    found = planner.plan(model, planner.as_measured(hardware) if arguments.measure else hardware, asked)
    best = found[0]
    _draw(arguments.picture, best)
    how = "measured" if arguments.measure else "estimated"
    limit = f", {memory / 2**20:.0f} MiB each" if memory else ""
    shared = not machine.accelerators and asked.devices > machine.cores
    notes = [SHARED_CORES.format(devices=asked.devices, cores=machine.cores)] if shared else []
    if best.depth > 1 and best.schedule in LIKE:
        notes.append(f"{best.schedule} is timed as {LIKE[best.schedule]}, which is not faster")
    lines = [
        folded(
            f"{about.name}, {about.image_size} px, {about.num_classes} classes: {len(model)} units, {model.weight_bytes / 2**20:.1f} MiB of weights "
            f"(times {how}); global batch {asked.global_batch} on {many(asked.devices, 'device')}{limit}"
        ),
        *(folded(f"note: {note}") for note in notes),
        "",
        render.proposals(distinct(found), arguments.top),
        "",
        render.stages(best),
        "",
        folded(
            f"timetable of one lane with {many(render.shown_slots(best), 'slot')} (digits forward, letters backward, dots idle)"
        ),
        render.picture(best),
        "",
        render.shell(f"run it: {planner.command_of(options, best)}"),
    ]
    payload = {
        "model": about.name, "image_size": about.image_size, "units": len(model), "weight_bytes": model.weight_bytes,
        "times": how, "devices": asked.devices, "global_batch": asked.global_batch, "memory": memory, "notes": notes,
        "proposals": [as_json(one) for one in distinct(found)[: arguments.top]],
        "command": planner.command_of(options, best),
    }  # fmt: skip
    return {"text": "\n".join(lines), "json": payload}


def simulate(arguments: argparse.Namespace, options: Options) -> dict[str, Any]:
    """The forecast for a cluster."""
    from conveyor.data.subject import planned
    from conveyor.monitor.observers import finite
    from conveyor.plan import forecasts, planner, render, simulator

    cluster = simulator.Cluster.parse(arguments.simulate)
    about = planned(options)
    model = planner.cost_model(options, about, cluster.hardware(), measure=False)
    case = forecasts.case_of(options, cluster, model, arguments.devices, given(arguments, options))
    counts = arguments.scaling or [case.replicas * len(case.stages)]
    found = simulator.scaling(
        cluster,
        case.stages,
        counts,
        micro_batch=case.micro_batch,
        global_batch=case.global_batch,
        schedule=case.schedule,
    )
    images = forecasts.images_of_run(options)
    ends = [
        simulator.finish(cluster, one.devices, one.update_seconds * images / one.global_batch, one.update_seconds)
        for one in found
    ]
    where = f"{many(cluster.hosts, 'host')} x {many(cluster.devices, 'device')}, {cluster.flops / 1e12:g} Tflop/s each, {cluster.link * 8 / 1e9:g} Gbit/s between hosts"
    lines = [
        folded(
            f"{about.name}, {about.image_size} px: {many(len(case.stages), 'stage')}, micro-batch {case.micro_batch}, "
            f"global batch {case.global_batch}, {case.schedule} (simulated: {where})"
        ),
        *(folded(f"note: {note}") for note in case.notes),
        *(
            folded(
                f"note: with {many(one.devices, 'device')} an update waits for the storage: {1e3 * one.data_seconds:.1f} ms for the images of an update"
            )
            for one in found
            if one.data_seconds >= one.update_seconds
        ),
        "",
        render.forecasts(found),
        "",
        *([render.curve(found), ""] if len(found) > 1 else []),
        *(
            folded(f"{many(one.devices, 'device')}, {images / 1e6:.4g} million images: {render.finish(end)}")
            for one, end in zip(found, ends, strict=True)
        ),
    ]
    payload = {
        "model": about.name, "image_size": about.image_size, "schedule": case.schedule, "micro_batch": case.micro_batch,
        "splits": list(case.split_names), "cluster": dataclasses.asdict(cluster), "notes": case.notes,
        "forecasts": [{**dataclasses.asdict(one), "finish": dataclasses.asdict(end)} for one, end in zip(found, ends, strict=True)],
    }  # fmt: skip
    return {"text": "\n".join(lines), "json": finite(payload)}


def check(arguments: argparse.Namespace, options: Options) -> dict[str, Any]:
    """Predictions beside measurements."""
    import os

    # Read once when torch is loaded, which is not yet the case: as in the runs that follow (see `plan.check.measure`).
    os.environ["OMP_WAIT_POLICY"] = "passive"
    from conveyor.data.subject import planned
    from conveyor.layout import Machine
    from conveyor.plan import check, planner

    about, hardware = planned(options), planner.hardware_here(options)
    devices = arguments.devices or Machine.here("cpu").cores
    micro_batch = measured_batch(arguments, options)
    asked = dataclasses.replace(
        planner.wanted(options, devices, None, given(arguments, options)),
        global_batch=4 * devices * micro_batch,
        update_seconds_per_byte=planner.update_rate(),
    )

    def costs(workers: int, staged: bool, recompute: str) -> Any:
        return planner.cost_model(
            options, about, hardware, measure=True, workers=workers, staged=staged, batch=micro_batch, kinds=(recompute,),
            global_batch=asked.global_batch,
        )  # fmt: skip

    def say(line: str) -> None:
        """Each row as soon as it is known, beside the table or the JSON object that follow."""
        print(line, file=sys.stderr, flush=True)

    cases = check.cases(devices, micro_batch)
    known = list(dict.fromkeys(f"{lanes}x{depth}" for lanes, depth, *_ in cases))
    for layout in arguments.check:
        if layout not in known:
            raise UserError(f"--check {layout}: layouts to check are {', '.join(known)}")
    chosen = [case for case in cases if not arguments.check or f"{case[0]}x{case[1]}" in arguments.check]
    found = check.compare(options, about, costs, planner.as_measured(hardware), asked, chosen, arguments.rounds, say)
    lines = [f"{about.name}, {about.image_size} px, global batch {asked.global_batch}", "", check.as_text(found)]
    return {"text": "\n".join(lines), "json": {"model": about.name, "comparisons": check.as_json(found)}}


def given(arguments: argparse.Namespace, options: Options) -> frozenset[str]:
    """The options that the user has set, by a configuration or on the command line, also to their default values."""
    return frozenset(options.changed()) | frozenset(getattr(arguments, "given", None) or ())


def measured_batch(arguments: argparse.Namespace, options: Options) -> int:
    """The micro-batch with which units are measured."""
    from conveyor.plan.planner import MEASURED_BATCH

    return options.batch.micro_batch_size if "micro_batch_size" in given(arguments, options) else MEASURED_BATCH


def distinct(found: Sequence[Any]) -> list[Any]:
    """The best of each layout with and without recomputation: the others differ in their micro-batches only."""
    best: dict[tuple[str, str], Any] = {}
    for one in found:
        best.setdefault((one.layout, one.recompute), one)
    return list(best.values())


def as_json(one: Any) -> dict[str, Any]:
    """A proposal as plain values."""
    return {
        "layout": one.layout, "lanes": one.lanes, "depth": one.depth, "micro_batch": one.micro_batch, "slots": one.slots,
        "accumulation": one.slots // one.lanes, "schedule": one.schedule, "recompute": one.recompute, "splits": list(one.split_names),
        "images_per_second": one.images_per_second, "update_seconds": one.update_seconds, "bubble": one.bubble,
        "memory_per_device": list(one.memory), "reduce_seconds": one.reduce_seconds,
        "stages": [{"units": stage.stop - stage.start, "forward": stage.forward, "backward": stage.backward, "weight_bytes": stage.weight_bytes} for stage in one.stages],
    }  # fmt: skip


def _draw(path: str | None, best: Any) -> None:
    if path is None:
        return
    from conveyor.files import make_parent, write_atomically
    from conveyor.monitor.gantt import gantt
    from conveyor.monitor.svg import standalone

    make_parent(path)
    write_atomically(path, standalone(gantt(best.spans(PICTURE_SLOTS), label="Timetable of one lane")))
