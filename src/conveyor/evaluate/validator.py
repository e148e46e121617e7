"""Validation of a run's current weights, of a checkpoint's, or of any model's, on the run's validation set."""

import contextlib
import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from conveyor.checkpoint.state import State
from conveyor.data.batch import Batch, Dataset
from conveyor.data.feed import ValidationFeed
from conveyor.data.identity import check_classes
from conveyor.data.transform.prepare import Prepare
from conveyor.evaluate.accuracy import Accuracy, validate
from conveyor.evaluate.answers import AllAnswers
from conveyor.evaluate.mistakes import Answers
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
        self._spec, self._world, self.dataset, self._prepare = spec, world, dataset, prepare
        self._own = own
        self._device = device or world.device
        """Where images are prepared and models answer; sums over workers stay on the worker's device."""
        self._spare: nn.Module | None = None
        self.answers = Answers()
        """Of the last measurement."""
        self.all_answers: AllAnswers | None = None
        """Of the last measurement, where `--answers` or several labels for each image ask for them."""
        self.thresholds: tuple[float, ...] | None = None
        """Of the last measurement of a multi-label model."""
        self.during_training: tuple[Accuracy, Answers] | None = None
        """Of the last one that training asked for."""

    def of_session(self, session: Session) -> Accuracy:
        """The accuracy of the run's weights as they are now: the averaged ones when the run keeps an average."""
        share: tuple[int, int] | None = None
        with _averaged(session):
            if session.world.depth > 1 and self._spec.options.layout.pipelined_validation:
                from conveyor.training.stage_lane import Relay, StageLane

                assert isinstance(session.lane, StageLane)
                model: nn.Module = Relay(session.lane)
                share = (session.world.lane, session.world.lanes)
            elif session.world.depth > 1 or self._device != session.world.device:
                model = self._loaded(session.model_state())
            else:
                model = session.lane.module
            found = self.measure(model, share)
        self.during_training = found, self.answers
        return found

    def weights(self, session: Session) -> dict[str, Tensor]:
        """Copies of the weights that `of_session` measures; every worker must call it."""
        with _averaged(session):
            return {name: tensor.detach().cpu().clone() for name, tensor in session.model_state().items()}

    def read(self, samples: Sequence[int]) -> tuple[Tensor, Tensor]:
        """uint8 [N, H, W, C] images of the set, and the network's input that they become, float32 on the CPU."""
        raw = self.dataset.read(np.array(samples, np.int64), 0)
        batch = Batch(raw.images, raw.labels, torch.tensor(samples), -1, 0, 0, len(samples))
        return raw.images, self._prepare(batch, False)[0].float().cpu()

    def plain_model(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The network in float32 on the CPU, without the kernels and the precision of training."""
        model = build_model.build_model(self._spec, own=copy.deepcopy(self._own))
        load_into(model, weights, "the run")
        return model

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
            self.dataset,
            self._spec.validation_batch,
            number,
            count,
            prefetch=options.data.prefetch,
            threads=options.data.loader_threads,
            transform=self._prepare.on_host(False),
            pin=world.device.type == "cuda",
        )
        quiet = options.run.quiet or not world.is_main
        self.answers = Answers()
        several = options.data.multi_label
        if options.events.answers is not None or several:
            self.all_answers = AllAnswers(
                len(self.dataset), self._spec.subject.num_classes, world.device, multi_label=several
            )
        with feed, track(len(feed) * self._spec.validation_batch, "Validate", quiet=quiet) as bar:

            def seen(batch: Batch, logits: Tensor) -> None:
                bar.advance(batch.num_valid)
                self.answers.see(batch, logits)

            views = options.events.validation_views
            found = validate(
                model if views == "one" else Views(model, views),
                feed,
                self._prepare,
                world,
                num_batches=-(-len(self.dataset) // self._spec.validation_batch),
                num_classes=self._spec.subject.num_classes,
                latency=options.events.latency,
                on_batch=seen,
                answers=self.all_answers,
            )
            self.thresholds = found.thresholds
            return found

    def _loaded(self, tensors: dict[str, Tensor]) -> nn.Module:
        """A second model for weights that are not the ones in training; made once."""
        if self._spare is None:
            fresh = build_model.build_model(self._spec, own=copy.deepcopy(self._own))
            self._spare = build_model.place_model(fresh, self._spec, self._device, train=False)
        load_into(self._spare, tensors, "the checkpoint")
        return self._spare


def _averaged(session: Session) -> contextlib.AbstractContextManager[None]:
    """The averaged weights in place of the trained ones, when the run keeps an average."""
    ema = session.updater.ema
    return ema.applied() if ema is not None else contextlib.nullcontext()
