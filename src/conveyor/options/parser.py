"""Command-line arguments made from the option declarations."""

import argparse
import dataclasses
import re
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from conveyor.errors import UserError, nearest
from conveyor.options.coerce import Kind, to_plain
from conveyor.options.field import about
from conveyor.options.options import Options, Spec, section_names, specs

Settings = TypeVar("Settings")
TITLES = {
    "data": "Data",
    "model": "Model",
    "batch": "Batch and pipeline",
    "layout": "Layout (where it runs, never what it computes)",
    "precision": "Precision",
    "optimizer": "Optimiser and loss",
    "schedule": "Learning rate",
    "length": "Length",
    "events": "Logs, checkpoints, validation",
    "run": "Run",
}


COMMON = frozenset((
    "data", "data_dir", "model", "image_size", "weights", "pretrained", "micro_batch_size", "replicas", "stages",
    "layout", "device", "precision", "optimizer", "weight_decay", "freeze", "unfreeze_at", "layer_decay",
    "label_smoothing", "ema_decay", "learning_rate", "lr_schedule", "warmup", "epochs", "updates", "max_time",
    "target_accuracy", "patience", "validation", "run_dir", "resume", "seed", "quiet",
))  # fmt: skip
"""The options that `--help` lists; `--help-all` lists all."""
LONG = 44
"""Letters of a text in the short help."""
ELSEWHERE = {
    "--amp": "--precision 16.32",
    "--bs": "--micro-batch-size",
    "--checkpoint-dir": "--run-dir",
    "--gpus": "--replicas and --device-ids",
    "--opt": "--optimizer",
    "--out": "--run-dir",
    "--output": "--run-dir",
    "--sched": "--lr-schedule",
    "--warmup-epochs": "--warmup 5ep",
    "--workers": "--loader-threads, or --layout for the processes of a run",
}
"""Other programs' flags without one exact counterpart here, and what to suggest instead."""


class _HelpAll(argparse.Action):
    """`--help-all`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.shows_all = True
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are one sentence with the nearest right name."""

    shows_all = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # -1e-3 and -5min are values too, not options.
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?([a-z]+|%)?$")
        self._used = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self._used = True
        words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._switches_spelled_out(words), namespace)

    def _switches_spelled_out(self, words: list[str]) -> list[str]:
        """`--training False` and `--training=False` as `--no-training`; `--training True` as `--training`."""
        switches = {
            flag
            for action in self._actions
            if isinstance(action, _Given) and action.nargs == 0
            for flag in action.option_strings
            if not flag.startswith("--no-")
        }
        result: list[str] = []
        for word in words:
            flag, _, value = word.partition("=") if "=" in word else (result[-1] if result else "", "", word)
            if flag not in switches or value.lower() not in ("true", "false"):
                result.append(word)
                continue
            if "=" in word:
                result.append(flag)
            if value.lower() == "false":
                result[-1] = "--no-" + flag.removeprefix("--")
        return result

    def format_help(self) -> str:
        """The options that people use, each with its first sentence; with `--help-all` everything."""
        rare = [action for action in self._actions if isinstance(action, _Given) and action.option_strings]
        kept = [action.help for action in rare]
        if not self.shows_all:
            for action in rare:
                action.help = first_sentence(action.help or "") if action.dest in COMMON else argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            for action, text in zip(rare, kept, strict=True):
                action.help = text

    def error(self, message: str) -> NoReturn:
        raise UserError(self._friendly(message))

    def _flags(self) -> set[str]:
        """The long options; those of the sub-command in use too, because its unknown options are reported here."""
        flags = {flag for action in self._actions for flag in action.option_strings if flag.startswith("--")}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                used = [each for each in action.choices.values() if isinstance(each, Parser) and each._used]
                flags = flags.union(*(each._flags() for each in used))
        return flags

    def _friendly(self, message: str) -> str:
        if match := re.match(r"unrecognized arguments: (.*)", message):
            words = match[1].split(" ")
            wrong = next((word for word in words if word.startswith("-")), words[0])
            flags = sorted(self._flags())
            if wrong.split("=")[0] in ELSEWHERE and "--micro-batch-size" in flags:
                here = ELSEWHERE[wrong.split("=")[0]]
                return f"{self.prog}: there is no option {wrong.split('=')[0]} (here that is {here})"
            close = nearest(wrong.split("=")[0], flags)
            hint = f" (did you mean {' or '.join(close[:2])}?)" if close and wrong.startswith("-") else ""
            kind = "option" if wrong.startswith("-") else "argument"
            return f"{self.prog}: there is no {kind} {wrong.split('=')[0]}{hint or f'; see {self.prog} --help'}"
        if match := re.match(r"ambiguous option: (.*) could match (.*)", message):
            wrong, several = match[1].split("=")[0], match[2].split(", ")
            short = min(several, key=len)  # --epoch means --epochs, not --epochs-per-validation
            shown = short if len(short) <= len(wrong) + 2 else " or ".join(nearest(wrong, several) or several[:3])
            return f"{self.prog}: there is no option {wrong} (did you mean {shown}?)"
        if match := re.match(r"argument ([^:]*): invalid choice: '?(.*?)'? \(choose from (.*)\)", message):
            choices = [choice.strip(" '") for choice in match[3].split(",")]
            close = nearest(match[2], choices)
            hint = f"did you mean {' or '.join(close[:2])}?" if close else f"choose from {', '.join(choices)}"
            return f"{self.prog}: {match[1]} cannot be {match[2]!r} ({hint})"
        return f"{self.prog}: {message[:1].lower()}{message[1:]}"


class _Given(argparse.Action):
    """Stores a value in `namespace.given`, so that what the user typed can be distinguished from a default."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if values is None:  # a word that may be left out
            return
        value = values
        if self.nargs == 0:
            value = not (option_string or "").startswith("--no-")
        namespace.given = {**(getattr(namespace, "given", None) or {}), self.dest: value}


def add_options(
    parser: argparse.ArgumentParser, sections: Iterable[str] | None = None, names: Iterable[str] | None = None
) -> None:
    """Add every option of the given sections (or those called `names`; all by default) as groups of the parser's help."""
    wanted = set(specs()) if names is None else set(names)
    if names is None and sections is None:
        parser.usage = f"{parser.prog} [options]"
        parser.add_argument(
            "--help-all", action=_HelpAll, nargs=0, help="All options; `conveyor options WORD` searches."
        )
    for section in sections if sections is not None else section_names():
        chosen = [spec for spec in specs().values() if spec.section == section and spec.name in wanted]
        group = parser.add_argument_group(TITLES[section]) if chosen else None
        for spec in chosen:
            _add(group, spec)


def add(
    parser: Any, flag: str, value: Any, metavar: str | None, text: str, kind: Callable[[str], Any] | None = None
) -> None:
    """Add an option that takes a value: `value` is its default, which the help shows, or its type if it has none.

    `kind` is the type where it is narrower than that of the default (`count`).
    """
    if isinstance(value, type):
        parser.add_argument(flag, type=kind or value, metavar=metavar, help=text)
        return
    shown = f"{value:g}" if isinstance(value, float) else value
    parser.add_argument(flag, type=kind or type(value), default=value, metavar=metavar, help=f"{text} [{shown}]")


def count(text: str) -> int:
    """The type of an argument that is a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"should be a whole number above 0, not {text!r}")
    return int(text)


def add_settings(parser: Any, kind: type, *names: str, default: str = "") -> None:
    """Add fields of the dataclass `kind`, declared with `option`, as options of a command: their texts and defaults.

    `default` says what holds where a field without a default is not given. Bounds and choices are not checked here but by
    `coerce.checked`, for settings that are made in Python too.
    """
    kinds, fields = typing.get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    for name in names:
        declared, flag = about(fields[name]), f"--{name.replace('_', '-')}"
        value, known = Kind.of(kinds[name]), fields[name].default
        text = f"{declared.doc} [{default}]" if default and known is None else declared.doc
        metavar = declared.metavar or ("{" + ",".join(declared.choices) + "}" if declared.choices else None)
        if value.item is bool:
            parser.add_argument(flag, action="store_true", help=text)
        elif value.many:
            parser.add_argument(flag, type=value.item, nargs="+", default=known, metavar=metavar, help=text)
        else:
            add(parser, flag, value.item if known is None else known, metavar, text)


def settings_from(kind: type[Settings], arguments: argparse.Namespace, **more: Any) -> Settings:
    """The dataclass `kind` from the arguments that have its fields' names, and from `more`."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in vars(arguments).items() if name in names} | more)


def add_checkpoint(parser: argparse.ArgumentParser, default: str = "last") -> None:
    """Add `--checkpoint`, which chooses one of a run's."""
    parser.add_argument(
        "--checkpoint", metavar="{best,last,N}", help=f"Of a run: its best, its last, or that of update N. [{default}]"
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, which may be given several times; later ones win, the command line wins over all."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME|FILE.yml[:NAME]",
        help="A named configuration (see `conveyor configs`) or a YAML file of options.",
    )


def options_from(arguments: argparse.Namespace, base: Options | None = None) -> Options:
    """Defaults (or `base`), then configurations and files in their order, then the command line."""
    from conveyor.options.file import configuration
    from conveyor.options.layers import layered

    layers = [configuration(name) for name in getattr(arguments, "config", None) or []]
    return layered([*layers, (getattr(arguments, "given", None) or {}, "")], base)


def named_by_user(arguments: argparse.Namespace) -> set[str]:
    """The options that the user gave, on the command line or in a file of options; not those of a named configuration."""
    from conveyor.options.file import configuration

    files = [name for name in getattr(arguments, "config", None) or [] if name.endswith((".yml", ".yaml"))]
    keys = {str(key).replace("-", "_") for name in files for key in configuration(name)[0]}
    return keys | set(getattr(arguments, "given", None) or {})


def _add(group: Any, spec: Spec) -> None:
    doc = _help(spec)
    if spec.kind.item is bool:
        negative = "--no-" + spec.name.replace("_", "-")
        group.add_argument(spec.flag, negative, dest=spec.name, action=_Given, nargs=0, help=doc)
        return
    metavar = spec.about.metavar or _metavar(spec)
    group.add_argument(
        *spec.flags, dest=spec.name, action=_Given, nargs="+" if spec.kind.many else None, metavar=metavar, help=doc
    )


def add_run(parser: argparse.ArgumentParser, text: str) -> None:
    """Add RUN as the first word, which means `--checkpoint-path RUN`."""
    add_word(parser, "checkpoint_path", "RUN", text)


def add_word(parser: argparse.ArgumentParser, name: str, metavar: str, text: str) -> None:
    """Add the option `name` as the first word, which may be left out."""
    parser.add_argument(name, nargs="?", action=_Given, metavar=metavar, help=text)
    parser.usage = f"{parser.prog} [{metavar}] [options]"


def first_sentence(text: str) -> str:
    """`Peak rate. More. [0.1]` -> `Peak rate. [0.1]`."""
    shown = re.search(r" \[[^\]]*\]$", text)
    sentence = re.split(r"(?<=[a-z)])\. ", text.removesuffix(shown[0] if shown else ""))[0].rstrip(".")
    if len(sentence) > LONG:
        # Up to the first pause outside brackets, unless that leaves a bare word.
        pauses = [found.start() for found in re.finditer(r"[;:] ", sentence) if found.start() > 10]
        closed = [end for end in pauses if sentence.count("(", 0, end) == sentence.count(")", 0, end)]
        sentence = sentence[: closed[0]] if closed else sentence
    return f"{sentence}.{shown[0] if shown else ''}"


def _metavar(spec: Spec) -> str:
    if spec.about.choices:
        return "{" + ",".join(spec.about.choices) + "}"
    names = {int: "N", float: "X", str: "TEXT"}
    return names.get(spec.kind.item, "N" if spec.name.endswith("per_epoch") else "DURATION")


def explained(spec: Spec) -> str:
    """What an option means, and its default."""
    return _help(spec).replace("%%", "%")


def _help(spec: Spec) -> str:
    text = spec.about.doc
    default = to_plain(spec.default)
    if default is not None and default != [] and default != "" and not isinstance(default, bool):
        shown = " ".join(str(part) for part in default) if isinstance(default, list) else default
        text += f" [{shown}{spec.about.unit}]"
    elif default is True:
        text += " [on]"
    return text.replace("%", "%%")


def width() -> int:
    """Columns for help texts: the terminal's, between 80 and 120."""
    import shutil

    return max(80, min(120, shutil.get_terminal_size().columns))
