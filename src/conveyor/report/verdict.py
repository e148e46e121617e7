"""A run in a few sentences: how it learned, where the time went, what to try."""

from collections.abc import Mapping, Sequence
from typing import Any

from conveyor.report.inputs import Calibration, Confusion, Run

GAP = 10.0
"""Points of accuracy between training and validation from which on a run is said to overfit."""
LOW = 90.0
"""Training accuracy in percent below which a run may still improve."""
STILL_RISING = 1.0
"""Gain of accuracy, in points, in the last quarter of the validations from which on the run was still improving."""
WAITING = 0.25
"""Share of the time from which on it is mentioned."""
TOO_SURE = 0.05
"""Distance of the average confidence from the accuracy from which on it is mentioned."""
AGAINST_OVERFITTING = {
    "augment": "--augment randaugment",
    "label_smoothing": "--label-smoothing 0.1",
    "weight_decay": "more --weight-decay",
    "pretrained": "--pretrained weights",
}
"""By option; one that the run had already is not advised, but for weight decay."""


def verdict(run: Run) -> list[str]:
    """The sentences, most important first; none for a run that has not validated."""
    validated = [value for _, value in run.series("accuracy", of_validation=True)]
    trained = [value for _, value in run.series("accuracy", of_validation=False)]
    if not validated:
        return []
    found = [
        _learning(trained, validated, run.options),
        *_late(validated),
        *_time(run.timing),
        *_sure(run.calibration),
        *_weakest(run.confusion),
    ]
    return [sentence for sentence in found if sentence]


def _learning(trained: Sequence[float], validated: Sequence[float], options: Mapping[str, Any]) -> str:
    best, last = max(validated), validated[-1]
    if not trained:
        return ""
    gap = trained[-1] - last
    if gap >= GAP:
        used = {name for name in AGAINST_OVERFITTING if options.get(name) not in (None, 0, "none")} - {"weight_decay"}
        cures = ["more images", *(cure for name, cure in AGAINST_OVERFITTING.items() if name not in used)]
        return (
            f"It overfits: {trained[-1]:.1f} % on training images, {last:.1f} % on others. Try {', '.join(cures[:-1])} or "
            f"{cures[-1]}."
        )
    if trained[-1] < LOW and last < LOW:
        rising = len(validated) >= 4 and last - validated[-1 - len(validated) // 4] >= STILL_RISING
        cure = (
            "more --epochs: it was still getting better"
            if rising
            else "more --epochs, a larger --model or another rate"
        )
        return f"It has not learned the training images either ({trained[-1]:.1f} %). Try {cure}."
    return f"Training and validation agree ({trained[-1]:.1f} and {last:.1f} %; best {best:.1f} %)."


def _late(validated: Sequence[float]) -> list[str]:
    best = max(validated)
    if best - validated[-1] < STILL_RISING:
        return []
    return [f"The best was {best:.1f} %, {best - validated[-1]:.1f} points above the last: take --checkpoint best."]


def _time(timing: dict[str, float]) -> list[str]:
    total = sum(timing.values())
    if total <= 0:
        return []
    cures = {
        "data": "waiting for images: give --loader-threads, and look with conveyor data bench",
        "validate": "validating: give --epochs-per-validation",
        "reduce": "exchanging gradients: give more --accumulation",
        "wait": "waiting for other stages: give more --accumulation, or fewer --stages",
        "checkpoint": "writing checkpoints: give --checkpoints-per-epoch",
    }
    name = max(timing, key=lambda one: timing[one] if one in cures else 0.0)
    share = timing[name] / total
    return [f"{100 * share:.0f} % of the time went into {cures[name]}."] if name in cures and share >= WAITING else []


def _sure(calibration: Calibration | None) -> list[str]:
    if calibration is None or abs(calibration.excess) < TOO_SURE:
        return []
    points = 100 * abs(calibration.excess)
    if calibration.excess > 0:
        return [
            f"It is too sure of itself, by {points:.0f} points on average. Try --label-smoothing 0.1 or --ema-decay."
        ]
    return [f"It is less sure than it could be, by {points:.0f} points on average."]


def _weakest(confusion: Confusion | None) -> list[str]:
    if confusion is None or not confusion.counts:
        return []
    known = [(recall, index) for index, recall in enumerate(confusion.recalls()) if recall is not None]
    recall, index = min(known)
    if recall >= LOW / 100 or len(known) < 3:
        return []
    taken = [(count, pair[1]) for pair, count in confusion.counts.items() if pair[0] == index != pair[1]]
    other = f", most often taken for {confusion.classes[max(taken)[1]]}" if taken else ""
    return [f"Weakest class: {confusion.classes[index]}, {100 * recall:.0f} % recognised{other}."]
