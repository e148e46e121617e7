"""The result of reading a dialect: one of our commands, its options, and notes."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from conveyor.dialects.reader import Values
from conveyor.errors import UserError
from conveyor.options import Options, specs
from conveyor.options.options import EXCLUSIVE, arguments_of
from conveyor.options.validation import check_training

SCHEDULES = {"Grouped": "gpipe", "Interleaved": "1f1b", "Sequential": "sequential"}
"""The pipeline schedules of both TensorFlow programs, and ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class Translation:
    """A command of ours: `conveyor COMMAND options...`, with notes about options that have no effect here."""

    command: str
    options: Options
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Words besides the options, such as the run that `restore` continues."""
    config: str | None = None
    """Name of the shipped configuration that the options came from, if one was asked for."""
    dry_run: bool = False
    json: bool = False
    folder: str = ""
    """The run folder as the dialect names it; `{random}` and `{time}` are filled in when the run starts."""
    then: Options | None = None
    """A second run that follows in the same workers when the first is done."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of serving besides the options."""

    def arguments(self) -> list[str]:
        """The sub-command and its arguments; with a shipped configuration, only what differs from it."""
        # Measuring the input has no plan to print: the plan of a dry run is that of the training it stands for.
        plans = self.dry_run and self.command != "data"
        switches = [flag for flag, on in (("--dry-run", plans), ("--json", self.json)) if on]
        return [self.command, *self.words, *self._options(), *switches]

    def text(self) -> str:
        """The same as commands to type, one in each line."""
        after = [] if self.then is None else [self.then.command_text()]
        return "\n".join([shlex.join(["conveyor", *self.arguments()]), *after])

    def _options(self) -> list[str]:
        if "overrides" in self.settings:
            return []  # a stored run: `words` hold everything
        if self.command == "data":
            return self._reading_options()
        if self.command not in ("train", "validate"):
            return []
        if self.config is not None:
            from conveyor.options.file import shipped

            base = Options().updated(shipped().resolve(self.config)).flat()
            wanted = self.options.flat()
            changes = {name: value for name, value in wanted.items() if value != base[name]}
            if not any(value is None or value == () for value in changes.values()):
                words = ["--config", self.config]
                for name, value in changes.items():
                    words += arguments_of(specs()[name], value)
                return words
        return self.options.command(self.command)[2:]

    def _reading_options(self) -> list[str]:
        """Options of the input pipeline; always with the batch, since `data bench` has another default than a run."""
        from conveyor.commands.data import reading_options

        chosen = self.options.changed() | {"micro_batch_size": self.options.batch.micro_batch_size}
        reading = reading_options()
        return [
            word for name, value in chosen.items() if name in reading for word in arguments_of(specs()[name], value)
        ]


class Draft:
    """Options of a translation while it is built."""

    def __init__(self, values: Values, style: str) -> None:
        self.values = values
        self.flat: dict[str, Any] = {"log_style": style}
        self.notes: list[str] = list(values.notes)
        for row in values.rows.values():
            if row.to and values[row.key] is not None:
                self.flat[row.to] = values[row.key]
            if row.nothing and values.has(row.key) and values[row.key] not in (False, None, []):
                self.notes.append(f"{row.flag} has no effect here: {row.nothing}")

    def set(self, **options: Any) -> None:
        """Set our options; None leaves an option at its default."""
        self.flat.update({name: value for name, value in options.items() if value is not None})

    def note(self, text: str) -> None:
        self.notes.append(text)

    def plan_only(self) -> None:
        """With --compile-only the plan is printed."""
        if self.values["compile_only"]:
            self.values.dry_run = True
            self.note("--compile-only: nothing is compiled here, so the plan is printed")

    def options(self) -> Options:
        """What the run would have so far: our own options on the command line override what they exclude."""
        own = self.values.own
        flat = dict(self.flat)
        for one, other in (
            *EXCLUSIVE,
            *((other, one) for one, other in EXCLUSIVE),
            ("learning_rate", "lr_reference_batch"),
        ):
            if one in own:
                flat.pop(other, None)
        return Options().updated(flat).updated(own)

    def launched_replicas(self, launcher: "Launcher", key: str, *others: int) -> int:
        """The launcher's replicas, with a note if the option `key` gave another number than them or `others`."""
        values = self.values
        if values.has(key) and values[key] not in (launcher.replicas, *others):
            self.note(f"{values.rows[key].flag} {values[key]}: the launcher's {launcher.replicas} replicas hold")
        return launcher.replicas

    def global_batch(self) -> int:
        """Samples of an update."""
        from conveyor.topology import Topology

        return Topology.from_options(self.options().batch)[0].global_batch

    def finish(self, command: str, words: tuple[str, ...] = ()) -> Translation:
        """The translation, with our own options of the command line on top."""
        options = self.options().check()
        if command == "train":
            check_training(options)
        return Translation(
            command,
            options,
            tuple(dict.fromkeys(self.notes)),
            words,
            dry_run=self.values.dry_run,
            json=self.values.json,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Launcher:
    """What a launcher said about the job that this script is part of; 0 is "not said"."""

    replicas: int = 0
    instances: int = 0
    devices_per_replica: int = 0
    hosts: tuple[str, ...] = ()

    @property
    def present(self) -> bool:
        return self.replicas > 0

    @property
    def local_replicas(self) -> int:
        """Model copies of one instance."""
        return self.replicas // max(1, self.instances)


def exponent_rate(exponent: float) -> float:
    """Learning rate per sample, `2^exponent`."""
    if not -60 <= exponent <= 60:
        raise UserError(f"a learning-rate exponent of {exponent:g} means 2^{exponent:g}: give one between -60 and 60")
    return float(2.0**exponent)


def share(kept: float) -> float:
    """`1 - kept` without binary rounding noise: batch-norm decay 0.97 is a momentum of 0.03."""
    from conveyor.topology import exact

    return float(1 - exact(kept))


def check_proportions(given: Sequence[float], number: int, wanted: str, most: int = 1) -> None:
    """Refuse memory proportions of another count than 1 or `number` (said as `wanted`), or out of range."""
    if given and len(given) not in (1, number):
        raise UserError(f"--available-memory-proportion has {len(given)} values: give 1, or {wanted}")
    if not all(0 < proportion <= most for proportion in given):
        what = "fractions" if most == 1 else "percentages"
        raise UserError(f"--available-memory-proportion takes {what} above 0 and up to {most}")
