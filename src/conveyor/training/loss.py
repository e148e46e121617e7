"""Cross entropy with label smoothing (two conventions) and mixed labels, and the count of hits."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from conveyor.data.batch import Target
from conveyor.errors import UserError
from conveyor.options import Options

LOSS, TOP1, TOP5, SAMPLES, BAD = range(5)
TALLY = 5
"""The places of a tally, float64 [5]: sums of loss and hits over the samples, samples, slots with a non-finite loss."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The mean over a micro-batch of H(q, softmax(logits)), with C classes and smoothing e.

    uniform: q = (1 - e) onehot + e / C.            loss = (1 - e) nll + (e / C) s
    others:  q = 1 - e for the label, e / (C - 1).  loss = (1 - e - e / (C - 1)) nll + (e / (C - 1)) s

    where nll = -log p[label] and s = -sum over all classes of log p. With mixed labels nll is the weighted sum over the
    terms of the target. Everything is float32, whatever the type of the logits.
    """

    smoothing: float = 0.0
    form: str = "uniform"

    @classmethod
    def from_options(cls, options: Options, num_classes: int) -> "Loss":
        smoothing, form = options.optimizer.label_smoothing, options.optimizer.smoothing_form
        if smoothing and form == "others" and num_classes < 2:
            raise UserError(
                "label smoothing over the other classes needs at least 2 classes: use --smoothing-form uniform"
            )
        return cls(smoothing, form)

    def __call__(self, logits: Tensor, target: Target) -> Tensor:
        """logits [B, C] -> the loss, a scalar."""
        logits = logits.float()
        if target.mixed is None:
            if self.smoothing == 0.0:
                return functional.cross_entropy(logits, target.labels)
            if self.form == "uniform":
                return functional.cross_entropy(logits, target.labels, label_smoothing=self.smoothing)
        log_p = functional.log_softmax(logits, dim=1)
        terms = target.mixed or [(target.labels, torch.ones_like(log_p[:, 0]))]
        nll = sum(
            (-weight * log_p.gather(1, labels.unsqueeze(1)).squeeze(1) for labels, weight in terms), log_p.new_zeros(())
        )
        if self.smoothing == 0.0:
            return nll.mean()
        own, every = self.weights(logits.shape[1])
        return (own * nll - every * log_p.sum(dim=1)).mean()

    def weights(self, num_classes: int) -> tuple[float, float]:
        """The factors of (nll, s) above."""
        if self.form == "uniform":
            return 1 - self.smoothing, self.smoothing / num_classes
        spread = self.smoothing / (num_classes - 1)
        return 1 - self.smoothing - spread, spread


def ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes stand before the label, int64 [B]; of equal logits the lower class number stands first.

    Without a sort, and exact for ties. A logit that is not finite never counts as a hit.
    """
    own = logits.gather(1, labels.unsqueeze(1))
    classes = torch.arange(logits.shape[1], device=logits.device)
    before = (logits > own) | ((logits == own) & (classes < labels.unsqueeze(1)))
    return before.sum(dim=1).masked_fill(~own.squeeze(1).isfinite(), logits.shape[1])


@torch.no_grad()
def tally(loss: Tensor, logits: Tensor, labels: Tensor, *, slots: int = 1, accuracy: bool = True) -> Tensor:
    """The tally of `slots` slots in one batch whose mean loss is `loss`; stays on the device."""
    count = labels.shape[0]
    result = torch.zeros(5, dtype=torch.float64, device=logits.device)
    result[LOSS] = loss.detach().double() * count
    result[SAMPLES] = count
    result[BAD] = (~loss.detach().isfinite()).double() * slots
    if accuracy:
        rank = ranks(logits.detach().float(), labels)
        result[TOP1] = (rank < 1).sum()
        result[TOP5] = (rank < 5).sum()
    return result
