"""Lightning's Trainer on the same network; one step of ours is one batch of a fit that is kept running."""

import sys

from protocol import say_ready, settings, unavailable


def main() -> None:
    asked = settings()
    try:
        import lightning
    except ImportError as error:
        unavailable(error)
    import json
    import logging
    import time
    import warnings

    import torch
    from plain_pytorch import with_torch_layers

    from conveyor.models import build

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(asked["threads"])
    torch.manual_seed(0)
    images = torch.randn(asked["batch"], 3, asked["image_size"], asked["image_size"])
    labels = torch.randint(0, asked["classes"], (asked["batch"],))

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        """Hands out one batch after the other, and answers requests between them."""

        def __iter__(self):  # type: ignore[no-untyped-def]
            # The trainer fetches one batch ahead: with three, two steps are done when the fourth is asked for.
            for _ in range(3):
                yield images, labels
            say_ready()
            for line in sys.stdin:
                steps = json.loads(line)["steps"]
                started = time.perf_counter()
                for _ in range(steps):
                    yield images, labels
                seconds = time.perf_counter() - started
                print(json.dumps({"seconds": seconds, "images": steps * asked["batch"]}), flush=True)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = with_torch_layers(build(asked["model"], num_classes=asked["classes"]))

        def training_step(self, batch, index):  # type: ignore[no-untyped-def]
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):  # type: ignore[no-untyped-def]
            return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)

    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Batches(), batch_size=None)
    trainer.fit(Module(), loader)


if __name__ == "__main__":
    main()
