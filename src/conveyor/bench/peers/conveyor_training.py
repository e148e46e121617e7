"""Conveyor's own training step on one lane: the parts of a real run, driven update by update."""

from protocol import serve, settings


def main() -> None:
    import torch

    from conveyor.bench.lanes import Work
    from conveyor.run.assemble import UserObjects, make_feed, make_prepare, make_session
    from conveyor.spec import resolve
    from conveyor.world.world import World

    asked = settings()
    torch.set_num_threads(asked["threads"])
    work = Work(asked["model"], asked["image_size"], asked["batch"], slots=1)
    precision = asked.get("precision", "32.32")
    options = work.options("1x1", asked["threads"]).replace(num_classes=asked["classes"], precision=precision)
    spec = resolve(options)
    world = World("cpu")
    prepare = make_prepare(spec, world)
    session = make_session(spec, world, UserObjects(), None, prepare)
    session.lane.module.train()
    with make_feed(spec, world, UserObjects(), prepare, 0) as feed:

        def step() -> None:
            tally = session.lane.gradients(feed, session.update, session.updater.loss_scale.value)
            session.updater.apply(session.update, spec.schedule.rate(session.update))
            session.meter.add(tally)
            session.update += 1

        serve(step, asked["batch"])


if __name__ == "__main__":
    main()
