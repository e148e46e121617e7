"""The named configurations of the four programs: stored with their program's option names and translated on use."""

import functools
from collections.abc import Callable
from importlib import resources
from typing import Any

from conveyor.options.coerce import to_plain
from conveyor.options.file import parse_mapping

FILES: dict[tuple[str, str], tuple[tuple[str, str | None], ...]] = {
    ("pytorch", ""): (("pytorch.yml", "pytorch/"), ("pytorch_sdk1.4.yml", "pytorch-sdk1.4/")),
    ("pytorch", "run_benchmark"): (("pytorch_inference.yml", "pytorch-inference/"),),
    ("tensorflow1", ""): (("tensorflow1.yml", ""), ("tensorflow1_v3.yml", None)),
    ("tensorflow2", ""): (("tensorflow2.yml", ""),),
}
"""Files of a dialect's (and script's) configurations, and the prefix of our name for each; None: it has none."""
EXAMPLES = ("my_config",)
BASES = {"mk2_efficientnet_b4_16ipus_base": {"pipeline_splits": ["block2b", "block4b", "block6c"]}}
"""Bases that leave an option to those that inherit: a value used to translate them, not part of the result."""


@functools.cache
def texts(dialect: str, script: str = "") -> dict[str, str]:
    """The configurations of a dialect with its option names: file name -> text."""
    folder = resources.files("conveyor") / "dialects" / "configs"
    return {name: (folder / name).read_text(encoding="utf-8") for name, _ in _files(dialect, script)}


@functools.cache
def entries(file: str, text: str) -> dict[str, Any]:
    """What a text of configurations holds: name -> values; not to be changed."""
    return parse_mapping(text, file)


def our_name(dialect: str, script: str, name: str) -> str | None:
    """Our name of the dialect's configuration `name`, if it has one."""
    known = ours()
    return next(
        (prefix + name for _, prefix in _files(dialect, script) if f"{prefix}{name}" in known and prefix is not None),
        None,
    )


def ours() -> dict[str, tuple[str, Callable[[], dict[str, Any]]]]:
    """Our name of each configuration -> its file, and a function that returns our options (see `conveyor.hooks`)."""
    found: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {}
    for (dialect, script), files in FILES.items():
        for file, prefix in files:
            for name in entries(file, texts(dialect, script)[file]) if prefix is not None else ():
                if name not in EXAMPLES:
                    options = functools.partial(_translated, dialect, script, file, name)
                    found[f"{prefix}{name}"] = (f"dialects/configs/{file}", options)
    return found


@functools.cache
def _translated(dialect: str, script: str, file: str, name: str) -> dict[str, Any]:
    from conveyor.dialects import scripts
    from conveyor.dialects.reader import add_configuration, read

    script = script or scripts.SCRIPTS[dialect][0]
    values = read(scripts.DIALECTS[dialect].table, script, [])
    add_configuration(values, name, {file: texts(dialect, script)[file]}, None)
    completed = BASES.get(name, {})
    values.config.update(completed)
    options = scripts.of_values(dialect, script, values, scripts.launcher_of({}), {}).options
    without = {"log_style", *(values.rows[key].outcomes[0] for key in completed)}
    return {key: to_plain(value) for key, value in options.changed().items() if key not in without}


def _files(dialect: str, script: str) -> tuple[tuple[str, str | None], ...]:
    return FILES.get((dialect, script)) or FILES.get((dialect, ""), ())
