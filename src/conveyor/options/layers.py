"""Options from several places, the later ones over the earlier: defaults, fine-tuning, configurations, what a user gave."""

from collections.abc import Mapping, Sequence
from typing import Any

from conveyor.options.coerce import to_bool
from conveyor.options.options import EXCLUSIVE, Options, specs

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
        options = _without_rivals(options, values).updated(values, where)
    return options.check()


def _without_rivals(options: Options, values: Mapping[str, Any]) -> Options:
    """`options` without those that exclude one of `values`: `--updates 8` takes the place of a configuration's epochs."""
    named = {str(key).replace("-", "_") for key, value in values.items() if value is not None}
    rivals = {two[1] for pair in EXCLUSIVE for two in (pair, pair[::-1]) if two[0] in named and two[1] not in named}
    return options.replace(**{name: specs()[name].default for name in rivals})


def defaults(named: Mapping[str, Any]) -> Options:
    """What holds under the options `named`: the defaults, and those of fine-tuning."""
    return _without_rivals(Options().updated(FINE_TUNING), named) if _fine_tunes(named) else Options()


def _fine_tunes(named: Mapping[str, Any]) -> bool:
    try:
        new_head = to_bool(named.get("replace_head", False))
    except ValueError:
        return False
    return named.get("pretrained") is not None or (named.get("weights") is not None and new_head)
