"""The loss of a micro-batch, in its forms, and the count of hits."""

from dataclasses import dataclass, field

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
class Distillation:
    """What a teacher's answers t add to the loss, as a mean over the samples; T is the temperature.

    soft: T^2 KL(softmax(t / T) || softmax(x / T)) (Hinton et al. 2015). hard: cross entropy with the teacher's best class.
    The whole loss is (1 - share) x that of the labels + share x this.
    """

    form: str = "soft"
    temperature: float = 1.0
    share: float = 0.5

    def __call__(self, logits: Tensor, teacher: Tensor) -> Tensor:
        if self.form == "hard":
            return functional.cross_entropy(logits, teacher.argmax(dim=1))
        own, theirs = (functional.log_softmax(values / self.temperature, dim=1) for values in (logits, teacher))
        return self.temperature**2 * (theirs.exp() * (theirs - own)).sum(dim=1).mean()


@dataclass(frozen=True, slots=True)
class Loss:
    """The mean over a micro-batch of a loss between the target q [C], with smoothing e, and the logits x [C].

    uniform: q = (1 - e) onehot + e / C;  others: q = 1 - e for the label, e / (C - 1) for each other class.
    Mixed labels make q the weighted sum over the terms of the target. With class weights w and focal gamma g:

    cross-entropy: -sum_c w_c q_c (1 - p_c)^g log p_c, p = softmax(x)
    bce: the mean over c of -w_c q_c (1 - p_c)^g log p_c - (1 - q_c) p_c^g log(1 - p_c), p = sigmoid(x); `threshold` makes
    every q_c above it 1 and the others 0.

    Weights do not divide the sum: torch's own mean is over the weights of a batch, which has no meaning over slots.
    Everything is float32, whatever the type of the logits.
    """

    smoothing: float = 0.0
    form: str = "uniform"
    kind: str = "cross-entropy"
    gamma: float = 0.0
    threshold: float | None = None
    weights: Tensor | None = field(default=None, compare=False)
    """float32 [C] on the device of the logits."""
    distillation: Distillation | None = None
    num_classes: int | None = None
    """C; a user's module may give another number of logits."""

    @classmethod
    def from_options(cls, options: Options, num_classes: int, weights: Tensor | None = None) -> "Loss":
        chosen = options.optimizer
        if chosen.label_smoothing and chosen.smoothing_form == "others" and num_classes < 2:
            raise UserError(
                "label smoothing over the other classes needs at least 2 classes: use --smoothing-form uniform"
            )
        taught = Distillation(chosen.distillation, chosen.teacher_temperature, chosen.teacher_share)
        return cls(
            chosen.label_smoothing,
            chosen.smoothing_form,
            options.by_task()["loss"],
            chosen.focal_gamma,
            chosen.bce_threshold,
            weights,
            taught if chosen.teacher is not None else None,
            num_classes,
        )

    def __call__(self, logits: Tensor, target: Target) -> Tensor:
        """logits [B, C] -> the loss, a scalar."""
        wanted = [len(target.labels), self.num_classes]
        if self.num_classes and (not isinstance(logits, Tensor) or list(logits.shape) != wanted):
            answer = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise UserError(
                f"the model answers {wanted[0]} images with {answer}: it should be a tensor of shape {wanted}, one logit for "
                "each image and class"
            )
        logits = logits.float()
        own = self._of_labels(logits, target)
        if self.distillation is None or target.teacher is None:
            return own
        share = self.distillation.share
        return (1 - share) * own + share * self.distillation(logits, target.teacher)

    def _of_labels(self, logits: Tensor, target: Target) -> Tensor:
        if self.kind == "bce":
            return self._binary(logits, self.dense(target, logits.shape[1]))
        if self.gamma or self.weights is not None:
            return self._weighted(logits, self.dense(target, logits.shape[1]))
        if target.mixed is None:
            if self.smoothing == 0.0:
                return functional.cross_entropy(logits, target.labels)
            if self.form == "uniform":
                return functional.cross_entropy(logits, target.labels, label_smoothing=self.smoothing)
        log_p = functional.log_softmax(logits, dim=1)
        terms = target.mixed or [(target.labels, torch.ones_like(log_p[:, 0]))]
        # nll = -log p[label], s = -sum over all classes of log p: the loss is own nll + every s.
        nll = sum(
            (-weight * log_p.gather(1, labels.unsqueeze(1)).squeeze(1) for labels, weight in terms), log_p.new_zeros(())
        )
        if self.smoothing == 0.0:
            return nll.mean()
        own, every = self.factors(logits.shape[1])
        return (own * nll - every * log_p.sum(dim=1)).mean()

    def _weighted(self, logits: Tensor, dense: Tensor) -> Tensor:
        log_p = functional.log_softmax(logits, dim=1)
        terms = dense * log_p if self.weights is None else dense * self.weights * log_p
        if self.gamma:
            # Where p rounds to 1 the slope of a power below 1 is infinite, and times log p = 0 not a number.
            least = torch.finfo(torch.float32).tiny if self.gamma < 1 else 0.0
            terms = terms * (1 - log_p.exp()).clamp_min(least) ** self.gamma
        return -terms.sum(dim=1).mean()

    def _binary(self, logits: Tensor, dense: Tensor) -> Tensor:
        if self.threshold is not None:
            dense = (dense > self.threshold).to(dense.dtype)
        present, absent = dense * functional.softplus(-logits), (1 - dense) * functional.softplus(logits)
        if self.weights is not None:
            present = present * self.weights
        if self.gamma:
            present, absent = (
                part * torch.sigmoid(sign * logits) ** self.gamma for part, sign in ((present, -1), (absent, 1))
            )
        return (present + absent).mean()

    def dense(self, target: Target, num_classes: int) -> Tensor:
        """q of every sample, float32 [B, C]; multi-label rows mix as they are."""
        ones = torch.ones(len(target.labels), device=target.labels.device)
        if target.labels.dim() == 2:
            terms = (labels * weight.unsqueeze(1) for labels, weight in target.mixed or [(target.labels, ones)])
            return sum(terms, ones.new_zeros(()))
        found = ones.new_zeros(len(ones), num_classes)
        for labels, weight in target.mixed or [(target.labels, ones)]:
            found = found.scatter_add(1, labels.unsqueeze(1), weight.unsqueeze(1))
        own, every = self.factors(num_classes) if self.smoothing else (1.0, 0.0)
        return own * found + every if self.smoothing else found

    def factors(self, num_classes: int) -> tuple[float, float]:
        """(own, every): q = own onehot + every."""
        if self.form == "uniform":
            return 1 - self.smoothing, self.smoothing / num_classes
        spread = self.smoothing / (num_classes - 1)
        return 1 - self.smoothing - spread, spread


def ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes stand before the label, int64 [B]; of equal logits the lower class number stands first.

    Without a sort, and exact for ties. A logit that is not finite never counts as a hit. Of rows of 0 and 1, [B, C], the
    label with the largest logit counts; a row without any is a hit where every logit is negative.
    """
    if labels.dim() == 2:
        own = logits.masked_fill(labels == 0, float("-inf")).argmax(dim=1)
        best = (logits.amax(dim=1) >= 0) * logits.shape[1]
        return torch.where(labels.sum(dim=1) == 0, best, ranks(logits, own))
    own = logits.gather(1, labels.unsqueeze(1))
    classes = torch.arange(logits.shape[1], device=logits.device)
    before = (logits > own) | ((logits == own) & (classes < labels.unsqueeze(1)))
    return before.sum(dim=1).masked_fill(~own.squeeze(1).isfinite(), logits.shape[1])


@torch.no_grad()
def tally(loss: Tensor, logits: Tensor, labels: Tensor, *, slots: int = 1, accuracy: bool = True) -> Tensor:
    """The tally of `slots` slots in one batch whose mean loss is `loss`; stays on the device."""
    count = labels.shape[0]
    result = torch.zeros(5, dtype=torch.float64, device=logits.device)
    result[LOSS] += loss.detach().double() * count  # added: -0 becomes 0, as where it is summed over workers
    result[SAMPLES] = count
    result[BAD] = (~loss.detach().isfinite()).double() * slots
    if accuracy:
        rank = ranks(logits.detach().float(), labels)
        result[TOP1] = (rank < 1).sum()
        result[TOP5] = (rank < 5).sum()
    return result
