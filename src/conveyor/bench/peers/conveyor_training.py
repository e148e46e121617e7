"""Conveyor's own training step on one lane: the parts of a real run, driven update by update."""

from protocol import serve, settings


def main() -> None:
    import torch

    from conveyor.options import Options
    from conveyor.run.assemble import Own, make_feed, make_prepare, make_session
    from conveyor.spec import resolve
    from conveyor.world.world import World

    asked = settings()
    torch.set_num_threads(asked["threads"])
    spec = resolve(
        Options().replace(
            model=asked["model"],
            data="imagenet" if asked["image_size"] > 64 else "cifar10",
            image_size=asked["image_size"],
            num_classes=asked["classes"],
            generated_data=True,
            micro_batch_size=asked["batch"],
            learning_rate=0.01,
            lr_schedule="constant",
            l2_regularization=1e-4,
            updates=1_000_000,
            updates_per_log=1_000_000,
            checkpoints_per_epoch=0,
            layout="1x1",
            threads=asked["threads"],
            device="cpu",
            precision=asked.get("precision", "32.32"),
        )
    )
    world = World.single("cpu")
    prepare = make_prepare(spec, world)
    session = make_session(spec, world, Own(), None, prepare)
    session.lane.module.train()
    with make_feed(spec, world, Own(), prepare, 0) as feed:

        def step() -> None:
            tally = session.lane.gradients(feed, session.update, session.updater.loss_scale.value)
            session.updater.apply(session.update, spec.schedule.rate(session.update))
            session.meter.add(tally)
            session.update += 1

        serve(step, asked["batch"])


if __name__ == "__main__":
    main()
