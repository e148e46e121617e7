"""Validation of a run's current weights, of a checkpoint's, or of any model's, on the run's validation set."""

import contextlib
import copy

import torch
from torch import Tensor, nn

from conveyor.checkpoint.state import State
from conveyor.data.batch import Batch, Dataset
from conveyor.data.feed import ValidationFeed
from conveyor.data.identity import check_classes
from conveyor.data.transform.prepare import Prepare
from conveyor.evaluate.accuracy import Accuracy, validate
from conveyor.evaluate.answers import AllAnswers
from conveyor.evaluate.mistakes import Mistakes
from conveyor.evaluate.views import Views
from conveyor.monitor.progress import track
from conveyor.spec import RunSpec
from conveyor.training import build_model
from conveyor.training.load_weights import load_into
from conveyor.training.session import Session
from conveyor.world.world import World


class Validation:
    """The validation set of a run and how its images are fed. Batches are dealt to all workers, each with the whole model."""

    def __init__(
        self,
        spec: RunSpec,
        world: World,
        dataset: Dataset,
        prepare: Prepare,
        own: nn.Module | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._spec, self._world, self._dataset, self._prepare = spec, world, dataset, prepare
        self._own = own
        self._device = device or world.device
        """Where images are prepared and models answer; sums over workers stay on the worker's device."""
        self._spare: nn.Module | None = None
        self.mistakes = Mistakes()
        """Of the last measurement."""
        self.all_answers: AllAnswers | None = None
        """Of the last measurement, where `--answers` asks for them."""
        self.during_training: tuple[Accuracy, Mistakes] | None = None
        """Of the last one that training asked for."""

    def of_session(self, session: Session) -> Accuracy:
        """The accuracy of the run's weights as they are now: the averaged ones when the run keeps an average."""
        found = self._of_session(session)
        self.during_training = found, self.mistakes
        return found

    def _of_session(self, session: Session) -> Accuracy:
        ema = session.updater.ema
        with ema.applied() if ema is not None else contextlib.nullcontext():
            if session.world.depth > 1 and self._spec.options.layout.pipelined_validation:
                from conveyor.training.stage_lane import Relay, StageLane

                assert isinstance(session.lane, StageLane)
                return self.measure(Relay(session.lane), (session.world.lane, session.world.lanes))
            if session.world.depth > 1 or self._device != session.world.device:
                return self.measure(self._loaded(session.model_state()))
            return self.measure(session.lane.module)

    @property
    def dataset(self) -> Dataset:
        """The images."""
        return self._dataset

    def loaded(self, state: State) -> nn.Module:
        """A model with the weights of a checkpoint: the averaged ones when it has them."""
        check_classes(state.progress.get("class_names", ()), self._spec.data.class_names)
        return self._loaded(state.best_weights())

    def measure(self, model: nn.Module, share: tuple[int, int] | None = None) -> Accuracy:
        """The accuracy of `model`, which is on the device of validation in its final precision.

        `share` is (number, count) of the parts of the set; default: one part per worker.
        """
        options, world = self._spec.options, self._world
        number, count = share or (world.rank, world.size)
        feed = ValidationFeed(
            self._dataset,
            self._spec.validation_batch,
            number,
            count,
            prefetch=options.data.prefetch,
            threads=options.data.loader_threads,
            transform=self._prepare.on_host(False),
            pin=world.device.type == "cuda",
        )
        quiet = options.run.quiet or not world.is_main
        self.mistakes = Mistakes()
        if options.events.answers is not None:
            self.all_answers = AllAnswers(len(self._dataset), self._spec.num_classes, world.device)
        with feed, track(len(feed) * self._spec.validation_batch, "Validate", quiet=quiet) as bar:

            def seen(batch: Batch, logits: Tensor) -> None:
                bar.advance(batch.num_valid)
                self.mistakes.see(batch, logits)

            views = options.events.validation_views
            return validate(
                model if views == "one" else Views(model, views),
                feed,
                self._prepare,
                world,
                num_batches=-(-len(self._dataset) // self._spec.validation_batch),
                num_classes=self._spec.num_classes,
                latency=options.events.latency,
                on_batch=seen,
                answers=self.all_answers,
            )

    def _loaded(self, tensors: dict[str, Tensor]) -> nn.Module:
        """A second model for weights that are not the ones in training; made once."""
        if self._spare is None:
            fresh = copy.deepcopy(self._own) if self._own is not None else None
            self._spare = build_model.place_model(
                build_model.build_model(self._spec, own=fresh), self._spec, self._device, train=False
            )
        load_into(self._spare, tensors, "the checkpoint")
        return self._spare
