"""`Options`: all sections together, the one object that defines a run."""

import dataclasses
import functools
import shlex
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conveyor.errors import UserError, did_you_mean
from conveyor.options.batch import BatchOptions, LayoutOptions
from conveyor.options.coerce import Kind, coerce, to_plain
from conveyor.options.data import DataOptions
from conveyor.options.field import About, about
from conveyor.options.model import ModelOptions
from conveyor.options.optimizer import OptimizerOptions, ScheduleOptions
from conveyor.options.precision import PrecisionOptions, check_short
from conveyor.options.run import EventOptions, LengthOptions, RunOptions

EXCLUSIVE = (
    ("updates", "epochs"),
    ("generated_data", "synthetic_data"),
    ("accumulation", "global_batch_size"),
    ("norm_groups", "norm_group_channels"),
    ("rmsprop_decay", "rmsprop_decay_per_sample"),
)
"""Pairs of options of which a run may set one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """One option: where it lives, what it takes, what it means."""

    name: str
    section: str
    kind: Kind
    about: About
    default: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """The flag and its aliases."""
        return (self.flag, *("--" + alias.replace("_", "-") for alias in self.about.aliases))

    def coerce(self, value: Any) -> Any:
        return coerce(self.name.replace("_", "-"), self.kind, self.about, value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Every option of a run, grouped in sections; immutable, comparable, written to and read from YAML."""

    data: DataOptions = DataOptions()
    model: ModelOptions = ModelOptions()
    batch: BatchOptions = BatchOptions()
    layout: LayoutOptions = LayoutOptions()
    precision: PrecisionOptions = PrecisionOptions()
    optimizer: OptimizerOptions = OptimizerOptions()
    schedule: ScheduleOptions = ScheduleOptions()
    length: LengthOptions = LengthOptions()
    events: EventOptions = EventOptions()
    run: RunOptions = RunOptions()

    def flat(self) -> dict[str, Any]:
        """All options by name."""
        return {spec.name: getattr(getattr(self, spec.section), spec.name) for spec in specs().values()}

    def by_task(self) -> dict[str, str]:
        """Options whose default follows from --task."""
        several = self.data.multi_label
        return {
            "loss": self.optimizer.loss or ("bce" if several else "cross-entropy"),
            "best_by": self.events.best_by or ("map" if several else "accuracy"),
        }

    def changed(self) -> dict[str, Any]:
        """The options that differ from the defaults."""
        return {name: value for name, value in self.flat().items() if value != specs()[name].default}

    def replace(self, **changes: Any) -> "Options":
        """The same options with some values changed, by their flat names; values are coerced and checked."""
        return self.updated(changes)

    def updated(self, changes: Mapping[str, Any], where: str = "") -> "Options":
        """Like `replace`; an error begins with `where`, the place the values come from."""
        by_section: dict[str, dict[str, Any]] = {}
        try:
            for key, value in changes.items():
                spec = find(key)
                values = by_section.setdefault(spec.section, {})
                if spec.name in values:
                    raise UserError(f"{key} is a second name of {spec.name.replace('_', '-')}: give one of them")
                values[spec.name] = spec.coerce(value)
            check_short(by_section.get("precision", {}))
        except UserError as error:
            raise UserError(f"{where}: {error}" if where else str(error)) from None
        sections = {name: dataclasses.replace(getattr(self, name), **values) for name, values in by_section.items()}
        return dataclasses.replace(self, **sections)

    def check(self) -> "Options":
        """Refuse options that exclude each other."""
        values = self.flat()
        for one, other in EXCLUSIVE:
            first, second = (specs()[name] for name in (one, other))
            if values[one] != first.default and values[other] != second.default:
                raise UserError(
                    f"{first.flag} {values[one]} and {second.flag} {values[other]} exclude each other: give one of them"
                )
        return self

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str = "") -> "Options":
        return cls().updated(mapping, where).check()

    def to_yaml(self) -> str:
        """All options under headings of their sections; `from_yaml` gives the same object back."""
        import yaml

        lines: list[str] = []
        for section in section_names():
            lines.append(f"# {section}")
            chosen = getattr(self, section)
            values = {field.name: to_plain(getattr(chosen, field.name)) for field in dataclasses.fields(chosen)}
            lines.append(yaml.safe_dump(values, sort_keys=False, width=1000).rstrip())
        return "\n".join(lines) + "\n"

    @classmethod
    def from_yaml(cls, path: str | Path) -> "Options":
        from conveyor.options.file import read_mapping

        return cls.from_mapping(read_mapping(path), where=str(path))

    def command(self, name: str = "train") -> list[str]:
        """The command line that gives these options: `conveyor`, the sub-command and what differs from what holds without."""
        from conveyor.options.layers import defaults

        words, below = ["conveyor", name], defaults(self.changed()).flat()
        for key, value in self.flat().items():
            if value != below[key] and (name, key) != ("validate", "training"):
                words += arguments_of(specs()[key], value)
        return words

    def command_text(self, name: str = "train") -> str:
        return shlex.join(self.command(name))


def arguments_of(spec: Spec, value: Any) -> list[str]:
    """The words of the command line that set one option."""
    if spec.kind.item is bool:
        return [spec.flag if value else "--no-" + spec.name.replace("_", "-")]
    plain = to_plain(value)
    return [spec.flag, *(str(part) for part in (plain if isinstance(plain, list) else [plain]))]


def section_names() -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(Options))


@functools.cache
def specs() -> dict[str, Spec]:
    """Every option by its name, in the order of the sections."""
    found: dict[str, Spec] = {}
    for spec in _declared():
        assert spec.name not in found, f"two options are called {spec.name}"
        found[spec.name] = spec
    return found


def find(key: str) -> Spec:
    """The option called `key` (dashes or underscores); a UserError names the nearest ones."""
    wanted = str(key).replace("-", "_")
    spec = specs().get(wanted) or next((spec for spec in specs().values() if wanted in spec.about.aliases), None)
    if spec is None:
        names = [name.replace("_", "-") for name in specs()]
        raise UserError(f"there is no option {key!r}{did_you_mean(str(key).replace('_', '-'), names)}")
    return spec


def _declared() -> Iterator[Spec]:
    for section in dataclasses.fields(Options):
        section_type: Any = type(section.default)
        hints = typing.get_type_hints(section_type)
        for field in dataclasses.fields(section_type):
            yield Spec(field.name, section.name, Kind.of(hints[field.name]), about(field), field.default)
