"""The scripts of the four dialects: read a command line, translate it, print our command, and run it."""

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from conveyor.cli import exit_code
from conveyor.dialects import configurations, other_scripts
from conveyor.dialects.help import help_text
from conveyor.dialects.other_scripts import Rules
from conveyor.dialects.popart import table as popart_table
from conveyor.dialects.popart import translate as popart
from conveyor.dialects.pytorch import table as pytorch_table
from conveyor.dialects.pytorch import translate as pytorch
from conveyor.dialects.reader import Values, add_configuration, file_beside, read
from conveyor.dialects.running import run
from conveyor.dialects.stored_runs import as_validation
from conveyor.dialects.table import Table
from conveyor.dialects.tensorflow1 import table as tensorflow1_table
from conveyor.dialects.tensorflow1 import translate as tensorflow1
from conveyor.dialects.tensorflow2 import table as tensorflow2_table
from conveyor.dialects.tensorflow2 import translate as tensorflow2
from conveyor.dialects.translation import Launcher, Translation
from conveyor.dialects.words import in_their_words
from conveyor.errors import UserError, did_you_mean
from conveyor.launch.rank import number


class Dialect(NamedTuple):
    """The options of a program, and what they mean together."""

    table: Table
    rules: Rules


DIALECTS = {
    "pytorch": Dialect(pytorch_table.TABLE, pytorch.translate),
    "tensorflow1": Dialect(tensorflow1_table.TABLE, tensorflow1.translate),
    "tensorflow2": Dialect(tensorflow2_table.TABLE, tensorflow2.translate),
    "popart": Dialect(popart_table.TABLE, popart.translate),
}
SCRIPTS = {
    "pytorch": ("train", "restore", "validate", "weight_avg", "run_benchmark"),
    "tensorflow1": ("train", "restore", "validation", "weight_avg", "inference_embedded"),
    "tensorflow2": ("train", "send_request", "export_for_serving"),
    "popart": ("resnet_main", "resnet_synthetic_benchmark"),
}
IDLE_VARIABLES = re.compile(
    r"(POPLAR|TF_POPLAR|POPART|POPTORCH|POPDIST|IPUOF|GCL|GCDA|PVTI)_(?!SDK_ENABLED)\w+|TF_CPP_VMODULE"
)
"""Environment variables that the originals' libraries read and that have no effect here."""
CONFIG_ALIASES = {"resnet50_bn_64_ipu": "mk2_resnet50_bn_64ipus", "resnet50_bn_64ipus_": "mk2_resnet50_bn_64ipus"}


def translate(
    dialect: str,
    script: str,
    words: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    launcher: Launcher | None = None,
) -> Translation:
    """The command line `SCRIPT words...` of a dialect as one of our commands."""
    environment = os.environ if environment is None else environment
    launcher = launcher or launcher_of(environment)
    values = values_of(dialect, script, words, folder)
    translation = of_values(dialect, script, values, launcher, environment)
    if idle := sorted(name for name in environment if IDLE_VARIABLES.fullmatch(name)):
        note = f"without effect here: {', '.join(idle)}, which steer the libraries of the original hardware"
        translation = dataclasses.replace(translation, notes=(*translation.notes, note))
    if values.config_name is None:
        return translation
    return dataclasses.replace(translation, config=configurations.our_name(dialect, script, values.config_name))


def of_values(
    dialect: str, script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]
) -> Translation:
    """The translation of the values of a script's options."""
    rules = other_scripts.RULES.get((dialect, script), DIALECTS[dialect].rules)
    translation = rules(script, values, launcher, environment)
    if translation.command == "validate" and "overrides" not in translation.settings:
        return as_validation(values, translation)
    return translation


def values_of(dialect: str, script: str, words: Sequence[str], folder: Path | None) -> Values:
    """The values of a command line, with those of the configuration that it names."""
    if script not in SCRIPTS[dialect]:
        raise UserError(f"there is no script {script}.py in {dialect}{did_you_mean(script, SCRIPTS[dialect])}")
    values = read(DIALECTS[dialect].table, script, words, family_of(dialect, script, words, folder))
    name = values.given.get("config")
    if name is not None:
        add_configuration(values, *_sources(dialect, script, name, folder), values.given.get("config_path"))
    elif "config_path" in values.given:
        raise UserError("--config-path needs --config: the name of a configuration in that file")
    return values


def _sources(dialect: str, script: str, name: str, folder: Path | None) -> tuple[str, dict[str, str]]:
    """A configuration's own name, and the texts to look for it in, the one beside the script first."""
    beside = file_beside(folder) if folder is not None and (dialect, script) not in configurations.FILES else {}
    return CONFIG_ALIASES.get(name, name), {**beside, **configurations.texts(dialect, script)}


def family_of(dialect: str, script: str, words: Sequence[str], folder: Path | None) -> str | None:
    """The model family that decides which options there are: the command line's, the configuration's, or the default.

    None where the options do not depend on the model. Other arguments are ignored: this is the first of two passes.
    """
    if dialect != "tensorflow1":
        return None
    rows = [row for row in DIALECTS[dialect].table if row.flag in ("--model", "--config", "--config-path")]
    chosen = {row.key: word_after(row.flag, words) for row in rows}
    if chosen["model"] is None and chosen["config"] is not None:
        values = Values(rows)
        add_configuration(values, *_sources(dialect, script, chosen["config"], folder), chosen["config_path"])
        chosen["model"] = values["model"]
    return (chosen["model"] or "resnet").lower()


def word_after(flag: str, words: Sequence[str]) -> str | None:
    """The last value of `flag` on a command line."""
    found = [value for word, value in pairwise(words) if word == flag]
    found += [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
    return found[-1] if found else None


def launcher_of(environment: Mapping[str, str]) -> Launcher:
    """What a launcher left in the environment for its workers."""
    devices = number(environment, "CONVEYOR_DEVICES_PER_REPLICA", 0)
    return Launcher(
        replicas=number(environment, "CONVEYOR_REPLICAS", 0),
        instances=number(environment, "CONVEYOR_INSTANCES", 0),
        devices_per_replica=devices if devices > 1 else 0,  # 1 may also be the default of a number that was not given
    )


def main(dialect: str, script: str, argv: Sequence[str] | None = None, folder: Path | None = None) -> int:
    """Run one command line of a dialect's script; returns the exit code."""
    beside = folder if folder is not None else Path(sys.argv[0]).resolve().parent

    def act(words: list[str]) -> int:
        try:
            if any(word in ("-h", "--help") for word in words):
                family = family_of(dialect, script, words, beside)
                print(help_text(dialect, script, family, DIALECTS[dialect].table))
                return 0
            return run(translate(dialect, script, words, folder=beside))
        except UserError as error:
            raise UserError(told(error, dialect, script, words, beside)) from None

    return exit_code(f"{script}.py", act, argv)


def told(error: UserError, dialect: str, script: str, words: Sequence[str], folder: Path) -> str:
    """An error's text with the options as on the command line."""
    text = str(error).removeprefix(f"{script}.py: ")
    try:
        family = family_of(dialect, script, words, folder)
    except UserError:
        return text  # The configuration itself cannot be read.
    return in_their_words(text, DIALECTS[dialect].table, script, words, family)
