"""One update on several layouts, measured in one run: one process, lanes, a pipeline, in alternating rounds.

Every layout is a real job (its workers started, pinned and joined as in `conveyor train`) that runs the training loop
for some updates whenever it is asked to. Besides the rate each round measures the time that the layout's workers take
alone:

- a lane: the same updates of its own slots with nothing reduced, all lanes at once;
- a stage: its forward and backward pass of one micro-batch with nothing sent, all stages at once.

`overhead of lanes` is the time of the job over the mean time of its lanes alone, minus 1. `share of ideal` is the
makespan of the pipeline's timetable with the stages' own times and free communication over the time of an update, the
optimiser and the data included. With p equal stages and m micro-batches the share of time that a stage works in it is m
/ (m + p - 1).
"""

import contextlib
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conveyor.bench.records import Record, Sample, make_record, ratios
from conveyor.errors import UserError
from conveyor.measure.rounds import Measured, Program, run_rounds
from conveyor.options import Options
from conveyor.options.field import option
from conveyor.processes import of_module
from conveyor.spec import RunSpec

if TYPE_CHECKING:
    from conveyor.world.world import World

WEIGHT_DECAY = 1e-4
"""As in the loops of `peers/` that our lanes are compared with."""
STAGE_REPEATS = 5
"""Passes of a stage alone for each update of a round."""

Report = Callable[[str, int, float], None]


@dataclass(frozen=True, slots=True)
class Work:
    """The update that every layout runs: `slots` micro-batches of `micro_batch_size` images."""

    model: str = option("resnet50", "Network.")
    image_size: int = option(96, "Height and width of the images.", minimum=1)
    micro_batch_size: int = option(8, "Images of a slot.", minimum=1)
    slots: int = option(8, "Micro-batches of an update.", minimum=1)
    schedule: str = option("1f1b", "Of the pipeline.", choices=("gpipe", "1f1b"))
    splits: tuple[str, ...] = option(("auto",), "Of the pipeline [auto].", metavar="LAYER")

    @property
    def label(self) -> str:
        return f"lanes-{self.model}-{self.image_size}px-{self.slots}x{self.micro_batch_size}"

    def options(self, layout: str, threads: int) -> Options:
        """The run that has this update; only the layout differs between programs."""
        depth = int(layout.partition("x")[2])
        return Options().replace(
            model=self.model, data="imagenet" if self.image_size > 64 else "cifar10", image_size=self.image_size,
            generated_data=True, micro_batch_size=self.micro_batch_size, accumulation=self.slots, learning_rate=0.01,
            l2_regularization=WEIGHT_DECAY, lr_schedule="constant", updates=1_000_000, updates_per_log=1_000_000, checkpoints_per_epoch=0,
            validation=False, layout=layout, threads=threads, device="cpu", quiet=True, max_restarts=0, report=False, tensorboard=False,
            stages=depth if depth > 1 else None, splits=self.splits if depth > 1 else (), pipeline_schedule=self.schedule,
        )  # fmt: skip


def measure(
    work: Work, cores: int, *, rounds: int, updates: int, report: Report = lambda name, number, rate: None
) -> Record:
    """All layouts of `cores` workers, each round in the opposite order of the one before."""
    whole, lanes, pipeline = "1x1", f"{cores}x1", f"1x{cores}"
    threads = {whole: cores, lanes: 1, pipeline: 1}
    if cores < 2 or work.slots < cores:
        raise UserError(f"{cores} cores and {work.slots} slots: lanes need two cores or more, and a slot for each")
    programs = [
        Program(layout, of_module("conveyor.bench.lanes", work.options(layout, count).to_yaml()), threads=count)
        for layout, count in threads.items()
    ]
    measured = run_rounds(programs, rounds=rounds, steps=updates, threads=None, report=report, alone=True)
    if measured.absent:
        raise UserError(f"a layout could not be measured: {next(iter(measured.absent.values()))}")
    return _record(work, cores, measured, updates)


def _record(work: Work, cores: int, measured: Measured, updates: int) -> Record:
    rates, answers = measured.rates, measured.answers
    whole, lanes, pipeline = rates
    results = {f"{name} rate": Sample("img/s", tuple(values)) for name, values in rates.items()}
    results[f"{lanes} / {whole}"] = ratios(rates[lanes], rates[whole])
    results[f"{pipeline} / {whole}"] = ratios(rates[pipeline], rates[whole])
    alone = [sum(one["alone"]) / len(one["alone"]) for one in answers[lanes]]
    together = [one["seconds"] for one in answers[lanes]]
    results["overhead of lanes"] = Sample(
        "%", tuple(100 * (job / lane - 1) for job, lane in zip(together, alone, strict=True))
    )
    shares = [
        ideal_seconds(one["alone"], work.slots, work.schedule) * updates / one["seconds"] for one in answers[pipeline]
    ]
    results["share of ideal"] = Sample("%", tuple(100 * share for share in shares))
    for stage in range(cores):
        results[f"stage {stage}"] = Sample("ms", tuple(1000 * sum(one["alone"][stage]) for one in answers[pipeline]))
    return make_record(
        work.label, results, model=work.model, image_size=work.image_size, batch=work.micro_batch_size, slots=work.slots, cores=cores,
        threads=cores, schedule=work.schedule, updates=updates, splits=answers[pipeline][0]["splits"], rounds=len(together),
    )  # fmt: skip


def ideal_seconds(stages: Sequence[Sequence[float]], micro_batches: int, schedule: str = "gpipe") -> float:
    """Makespan of a pipeline whose stages take (forward, backward) seconds and whose messages take none.

    >>> ideal_seconds([(1, 2), (1, 2)], 8) / 3
    9.0
    """
    from conveyor.plan.timetable import simulate

    table = simulate(schedule, [one[0] for one in stages], [one[1] for one in stages], micro_batches)
    return float(table.makespan)


# --- inside the workers of a layout ---


def serve(spec: RunSpec, world: "World") -> None:
    """Answer the requests of `measure.rounds.Session` until there are none; the main worker reads and answers."""
    from conveyor.numerics.threads import using_threads
    from conveyor.run.assemble import UserObjects, make_feed, make_prepare, make_session
    from conveyor.world.world import World

    with contextlib.ExitStack() as stack:
        stack.enter_context(using_threads(spec.layout.threads))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prepare = make_prepare(spec, world)
        job = make_session(spec, world, UserObjects(), None, prepare)
        batches = stack.enter_context(make_feed(spec, world, UserObjects(), prepare, 0, job.lane.reads_data))

        @functools.cache
        def measure_alone() -> Callable[[int], Any]:
            if world.depth > 1:
                return functools.partial(_stage_seconds, spec, job.lane)
            if world.lanes == 1:
                return float
            # As many slots as this lane has, in a world of one worker: nothing is exchanged.
            share = replace(spec.topology, accumulation=spec.topology.accumulation // world.lanes)
            own, single = spec.replace(topology=share), World(world.device)
            same = make_session(own, single, UserObjects(), None, prepare)
            feed = stack.enter_context(make_feed(own, single, UserObjects(), prepare, 0))
            return functools.partial(_updates, same, feed, folder)

        for steps, alone in _requests(world):
            world.barrier()
            seconds = _updates(job, batches, folder, steps)
            world.barrier()
            answer = {
                "seconds": seconds,
                "images": steps * spec.topology.global_batch,
                "alone": _gathered(world, measure_alone()(steps)) if alone else [],
                "splits": list(getattr(job.lane, "split_names", ())),
            }
            if world.is_main:
                print(json.dumps(answer), flush=True)


def _requests(world: "World") -> Iterator[tuple[int, bool]]:
    """How many updates are requested, and whether the workers' own times are; two updates first as a warm-up."""
    yield 2, False
    while True:
        line = sys.stdin.readline() if world.is_main else ""
        request = world.broadcast_object(json.loads(line) if line else None)
        if request is None:
            return
        yield request["steps"], request.get("alone", False)


def _updates(session: Any, batches: Any, folder: Path, count: int) -> float:
    """Seconds of `count` updates of the training loop."""
    from conveyor.training.events import Events
    from conveyor.training.handover import Handover
    from conveyor.training.loop import train
    from conveyor.training.signals import Signals

    spec = session.spec
    session.spec = spec.replace(length=replace(spec.length, updates_total=session.update + count))
    with Signals() as signals, Events(session, folder, [], None) as events:
        started = time.perf_counter()
        train(session, batches, events, signals, Handover(session, None))
        return time.perf_counter() - started


def _stage_seconds(spec: RunSpec, lane: Any, repeats: int) -> list[float]:
    """Forward and backward seconds of this worker's stages for one micro-batch, as the median of some."""
    import torch

    from conveyor.measure.parts import backward_seconds, medians, timed
    from conveyor.models.layers import norms
    from conveyor.pipeline.stage_io import wire_example

    pipeline = lane.pipeline
    shape = spec.subject.shape(spec.topology.micro_batch)
    images = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    found: list[tuple[float, float]] = []
    for _ in range(1 + STAGE_REPEATS * repeats):
        forward = backward = 0.0
        for index in pipeline.mine:
            module, part = pipeline.stage_modules[index], pipeline.parts[index]
            module.fetch = lambda number: images
            inputs = [torch.zeros(1, dtype=torch.int64)]
            if index:
                received = wire_example(pipeline.shapes(shape, torch.float32)[part.first])
                inputs = [torch.randn(one.shape).requires_grad_() for one in received]
            outputs, seconds = timed(module, *inputs, clock=time.perf_counter)
            forward += seconds
            backward += backward_seconds(outputs, [torch.full_like(one, 1e-6) for one in outputs], time.perf_counter)
        found.append((forward, backward))
    norms.discard(lane.module)
    for parameter in lane.module.parameters():
        parameter.grad = None
    return list(medians(found))


def _gathered(world: "World", own: Any) -> list[Any]:
    """Every worker's value, by rank, on all of them."""
    import torch

    values = own if isinstance(own, list) else [own]
    table = torch.zeros(world.size, len(values), dtype=torch.float64)
    table[world.rank] = torch.tensor(values, dtype=torch.float64)
    world.sum_over_all([table])
    rows: list[Any] = table.tolist()
    return rows if len(values) > 1 else [row[0] for row in rows]


def main(text: str) -> None:
    """The process of one layout: starts its workers, or is the only one."""
    from conveyor.launch.run_job import start
    from conveyor.options.file import parse_mapping

    options = Options.from_mapping(parse_mapping(text, "the program"), where="the program")
    start(options, run="conveyor.bench.lanes:serve")


if __name__ == "__main__":
    main(sys.argv[1])
