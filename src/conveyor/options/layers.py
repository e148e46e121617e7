"""Options from several places, the later ones over the earlier: defaults, fine-tuning, configurations, what a user gave."""

from collections.abc import Mapping, Sequence
from typing import Any

from conveyor.options.coerce import to_bool
from conveyor.options.options import Options

FINE_TUNING: dict[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "weight_decay": 0.01,
    "warmup": "5%",
    "min_crop_area": 0.25,
    "epochs": 10,
}
"""Under what a user says, when a run begins with weights that were trained on something else: rates that keep them."""


def layered(given: Sequence[tuple[Mapping[str, Any], str]], base: Options | None = None) -> Options:
    """The options that (values, where they come from) give, one over the other, over `base` if there is one."""
    named = {str(key).replace("-", "_"): value for values, _ in given for key, value in values.items()}
    options = base or defaults(named)
    for values, where in given:
        options = options.updated(values, where)
    return options.check()


def defaults(named: Mapping[str, Any]) -> Options:
    """What holds under the options `named`: the defaults, and those of fine-tuning."""
    if not _fine_tunes(named):
        return Options()
    # `updates` and `epochs` exclude each other.
    return Options().updated({k: v for k, v in FINE_TUNING.items() if k != "epochs" or not named.get("updates")})


def _fine_tunes(named: Mapping[str, Any]) -> bool:
    try:
        new_head = to_bool(named.get("replace_head", False))
    except ValueError:
        return False
    return named.get("pretrained") is not None or (named.get("weights") is not None and new_head)
