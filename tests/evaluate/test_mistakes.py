"""Which answers are kept: the same however the set is dealt to workers."""

import torch

from conveyor.data.batch import Batch
from conveyor.evaluate.mistakes import KEPT, KEPT_RIGHT, Answers


def batches(images: int, size: int) -> list[tuple[Batch, torch.Tensor]]:
    draw = torch.Generator().manual_seed(5)
    logits, labels = torch.randn(images, 10, generator=draw), torch.randint(10, (images,), generator=draw)
    return [
        (Batch(torch.empty(0), labels[at : at + size], torch.arange(at, at + size), -1, at // size, 0, size), logits[at : at + size])
        for at in range(0, images, size)
    ]  # fmt: skip


def test_workers_together_have_what_one_worker_has() -> None:
    parts = batches(400, 20)
    alone, shares = Answers(), [Answers() for _ in range(3)]
    for number, (batch, logits) in enumerate(parts):
        alone.see(batch, logits)
        shares[number % 3].see(batch, logits)
    together = Answers(one for share in shares for one in share.listed())
    assert together.wrong == alone.wrong
    assert together.right == alone.right
    assert len(alone.wrong) == KEPT
    assert all(one.label != one.predicted for one in alone.wrong)
    assert [one.confidence for one in alone.wrong] == sorted((one.confidence for one in alone.wrong), reverse=True)


def test_right_answers_are_the_first_of_different_classes() -> None:
    answers = Answers()
    logits = 5 * torch.eye(4)[[0, 0, 1, 2, 1, 3, 3, 0]]
    answers.see(Batch(torch.empty(0), logits.argmax(1), torch.arange(8), -1, 0, 0, 8), logits)
    assert [(one.sample, one.label) for one in answers.right] == [(0, 0), (2, 1), (3, 2), (5, 3)][:KEPT_RIGHT]
    assert answers.wrong == []


def test_padding_is_not_an_answer() -> None:
    answers = Answers()
    labels = torch.tensor([1, -100])
    answers.see(Batch(torch.empty(0), labels, torch.tensor([7, 0]), -1, 0, 0, 1), torch.tensor([[3.0, 0.0]]))
    assert [(one.sample, one.predicted) for one in answers.wrong] == [(7, 0)]
