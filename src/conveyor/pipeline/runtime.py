"""A lane of several workers: the stages of this worker, and the schedules that run them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from conveyor.models.clone import weightless
from conveyor.pipeline.assign import Part, steps
from conveyor.pipeline.schedules import make_schedule
from conveyor.pipeline.stage import NUMBER, Context, Fetch, KeyedStage, StageModule
from conveyor.pipeline.stage_io import arrive, as_tuple, depart, trace_shapes, wire_example

Loss = Callable[[Tensor, int], Tensor]
"""(logits, micro-batch number) -> the loss with every factor in it."""


class Pipeline:
    """All stages of a model on the workers of one lane; this worker keeps only its own.

    `stages` are the stages of the whole model in order (tuples in, tuples out), `parts` says which worker runs
    which; `group` holds the lane's workers in order. `on_forward(part, number)` and `on_backward(part, number)` are
    called after each pass of a micro-batch through one of this worker's parts, the latter when its weights have their
    gradients. Shapes are found by tracing on the meta device, so the library never makes a dry run of a stage on
    uninitialised memory.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        parts: Sequence[Part],
        *,
        worker: int,
        depth: int,
        schedule: str,
        group: Any,
        device: torch.device,
        on_forward: Callable[[int, int], None] = lambda part, number: None,
        on_backward: Callable[[int, int], None] = lambda part, number: None,
        on_last_backward: Callable[[], None] = lambda: None,
    ) -> None:
        self.parts, self.worker, self.depth = list(parts), worker, depth
        self.schedule, self.group, self.device = schedule, group, device
        self._stages = stages
        self._known_shapes: dict[tuple[Any, ...], list[tuple[Tensor, ...]]] = {}
        self._schedules: dict[tuple[Any, ...], tuple[Any, list[KeyedStage]]] = {}
        self._on_forward, self._on_backward, self._on_last_backward = on_forward, on_backward, on_last_backward
        last = len(self.parts) - 1
        self.mine = [index for index, part in enumerate(self.parts) if part.worker == worker]
        self.stage_modules = {
            index: StageModule(
                [stages[one] for one in self.parts[index].stages], index == 0, index == last, schedule == "zero-bubble"
            )
            for index in self.mine
        }
        self.holds_first, self.holds_last = 0 in self.stage_modules, last in self.stage_modules
        self._ended: set[int] = set()
        self._sends: list[tuple[Tensor, Any]] = []
        """Tensors that `forward` sent last, kept until they have arrived."""

    def release_others(self) -> None:
        """Free the other workers' layers; copies on the meta device stay, for tracing shapes."""
        own = {stage for index in self.mine for stage in self.parts[index].stages}
        self._stages = [stage if number in own else weightless(stage) for number, stage in enumerate(self._stages)]

    def peer(self, part: int) -> int:
        """Global rank of the worker that runs `part`."""
        return dist.get_global_rank(self.group, self.parts[part].worker)

    def run(
        self, count: int, images: Sequence[int], dtype: torch.dtype, fetch: Fetch, loss: Loss, context: Context
    ) -> None:
        """Forward and backward of `count` micro-batches of shape `images` [B, C, H, W]; gradients are added to p.grad."""
        done = 0
        self._ended.clear()
        calls = steps(count, self.depth, self.schedule)
        for number, size in enumerate(calls):
            schedule, stages = self._prepared(size, tuple(images), dtype)
            for stage in stages:
                stage.context, stage.first_micro_batch = context, done
                stage.on_forward, stage.on_backward = self._on_forward, self._on_backward
                stage.on_last_backward = self._last_backward if number == len(calls) - 1 else _no_hook
            schedule.conveyor_loss.function = loss
            if self.holds_first:
                self.stage_modules[0].fetch = fetch
            numbers = torch.arange(done, done + size)
            arguments = (numbers,) if self.holds_first else ()
            schedule.step(*arguments, target=numbers if self.holds_last else None, return_outputs=False)
            done += size

    @torch.no_grad()
    def forward(self, images: Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """One batch forward only, in the modules' present mode: the logits on the worker with the last stage.

        Sends are not awaited before the next batch's work begins, so the workers of a lane overlap.
        """
        shapes = self.shapes(tuple(shape), dtype)
        result: Tensor | None = None
        for index in self.mine:
            part, module = self.parts[index], self.stage_modules[index]
            if index == 0:
                assert images is not None
                tensors: tuple[Tensor, ...] = (images,)
            else:
                received = [
                    torch.empty(one.shape, dtype=one.dtype, device=self.device)
                    for one in wire_example(shapes[part.first])
                ]
                for one in received:
                    dist.recv(one, self.peer(index - 1), group=self.group)
                tensors = arrive(received)
            for stage in module.stages:
                tensors = as_tuple(stage(*tensors))
            if index == len(self.parts) - 1:
                (result,) = tensors
            else:
                departing = depart(tensors)
                self.drain()
                self._sends = [(one, dist.isend(one, self.peer(index + 1), group=self.group)) for one in departing]
        return result

    def drain(self) -> None:
        """Wait until everything sent by `forward` has arrived."""
        for _, work in self._sends:
            work.wait()
        self._sends = []

    def _last_backward(self, index: int) -> None:
        """Gradients of a worker become final when the last of its parts begins its last backward pass."""
        self._ended.add(index)
        if len(self._ended) == len(self.mine) and self.schedule != "zero-bubble":
            self._on_last_backward()

    def shapes(self, images: tuple[int, ...], dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
        """Inputs of each stage and outputs of the last for images of this shape, on the meta device."""
        key = (images, dtype)
        if key not in self._known_shapes:
            # Validation may be the first to ask, in inference mode, whose tensors training could not use.
            with torch.inference_mode(False):
                self._known_shapes[key] = trace_shapes(self._stages, images, dtype)
        return self._known_shapes[key]

    def _prepared(self, count: int, images: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, list[KeyedStage]]:
        key = (count, images, dtype)
        if key not in self._schedules:
            shapes = self.shapes(images, dtype)
            stages = [self._stage(index, shapes) for index in self.mine]
            loss = _DeferredLoss()
            schedule = make_schedule(self.schedule, self.parts, stages, self.depth, count, loss)
            schedule.conveyor_loss = loss
            self._schedules[key] = (schedule, stages)
        return self._schedules[key]

    def _stage(self, index: int, shapes: list[tuple[Tensor, ...]]) -> KeyedStage:
        part = self.parts[index]
        inputs = (NUMBER,) if index == 0 else wire_example(shapes[part.first])
        last = index == len(self.parts) - 1
        outputs = shapes[part.stop] if last else wire_example(shapes[part.stop])
        outputs = tuple(one.detach().requires_grad_(one.is_floating_point()) for one in outputs)
        return KeyedStage(
            self.stage_modules[index],
            index,
            len(self.parts),
            self.device,
            input_args=inputs,
            output_args=outputs if len(outputs) > 1 or not last else outputs[0],
            group=self.group,
        )


class _DeferredLoss:
    """A loss that is set later: a schedule takes its loss at construction, ours depends on the update's targets."""

    function: Loss

    def __call__(self, output: Tensor, number: Tensor) -> Tensor:
        return self.function(output, int(number.item()))


def _no_hook(index: int) -> None:
    """The hook of a call of the schedule that is not the update's last: does nothing."""
