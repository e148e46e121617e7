"""Benchmark specifications in YAML: commands with patterns over their text, or with metrics as JSON lines.

A top-level entry with `cmd` is a benchmark; entries without are anchors for YAML references. Keys:

- `cmd`: the command; shell variables are expanded, `{name}` is replaced from `parameters`;
- `parameters`: name -> list (or comma-separated text); the benchmark runs for every combination;
- `env`, `location`: variables and the folder it runs in;
- `data`: metric -> `regexp` with one group, `skip` (first matches dropped), `reduction_type` (`mean` or `final`);
- `metrics`: instead of patterns, a list of names found in the structured record that `conveyor` commands write;
- `output`: pairs of column title and metric or parameter.
"""

import itertools
import os
import re
import shlex
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conveyor.errors import UserError, did_you_mean, nearest
from conveyor.options.file import read_mapping

KNOWN_KEYS = {
    "cmd", "parameters", "env", "location", "data", "metrics", "output", "description", "small", "timeout",
    "requirements_path", "required_apt_packages_path", "pre_run_commands", "generated",
}  # fmt: skip
PATTERN_KEYS = ("regexp", "skip", "reduction_type")


@dataclass(frozen=True, slots=True)
class Pattern:
    """How a metric is read from the text that a command prints."""

    regexp: re.Pattern[str]
    skip: int = 0
    reduction: str = "mean"

    def read(self, text: str) -> float | None:
        """The mean (or the last) of all matches but the first `skip`; None if nothing is left."""
        values = []
        for match in itertools.islice(self.regexp.finditer(text), self.skip, None):
            try:
                values.append(float(match[1].strip().rstrip("%").replace(",", "")))
            except (ValueError, AttributeError):  # not a number, or a group that took no part
                continue
        if not values:
            return None
        return values[-1] if self.reduction == "final" else sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a benchmark: the command with its parameters filled in."""

    benchmark: str
    parameters: dict[str, str]
    command: list[str]
    env: dict[str, str]
    folder: Path

    @property
    def name(self) -> str:
        inside = ",".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.benchmark}[{inside}]" if inside else self.benchmark


@dataclass(frozen=True, slots=True)
class Benchmark:
    """An entry of a specification."""

    name: str
    command: str
    description: str = ""
    parameters: dict[str, list[str]] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    location: str = ""
    patterns: dict[str, Pattern] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    output: tuple[tuple[str, str], ...] = ()
    small: str = ""
    timeout: float | None = None
    folder: Path = Path()

    def cases(self, small: bool = False, environment: Mapping[str, str] | None = None) -> list[Case]:
        """Every combination of the parameters; with `small` the entry's own shortening is appended."""
        names = list(self.parameters)
        found = []
        for values in itertools.product(*self.parameters.values()):
            chosen = dict(zip(names, values, strict=True))
            env = {key: _expand(value, environment) for key, value in self.env.items()}
            known = {**(os.environ if environment is None else environment), **env}
            text = " ".join([_fill(self.command, chosen, self.name), *([self.small] if small and self.small else [])])
            found.append(
                Case(self.name, chosen, _words(_expand(text, known), self.name), env, self.folder / self.location)
            )
        return found


def read_spec(path: str | Path, folder: Path | None = None) -> dict[str, Benchmark]:
    """All benchmarks of a file, in its order; they run in `folder`, by default the file's own."""
    file = Path(path)
    entries = read_mapping(file)
    for name, entry in entries.items():
        if isinstance(entry, dict) and "cmd" not in entry:
            _refuse_unknown([key for key in entry if nearest(str(key), ["cmd"])], KNOWN_KEYS, f"{file}: {name}")
    found = {
        str(name): _benchmark(str(name), entry, file, folder or file.parent)
        for name, entry in entries.items()
        if isinstance(entry, dict) and "cmd" in entry
    }
    if not found:
        raise UserError(f"{file} holds no benchmark: an entry needs a `cmd`")
    return found


def choose(benchmarks: dict[str, Benchmark], names: Iterable[str]) -> list[Benchmark]:
    """The benchmarks called `names`, or all."""
    wanted = list(names)
    for name in wanted:
        if name not in benchmarks:
            raise UserError(f"there is no benchmark {name!r}{did_you_mean(name, benchmarks)}")
    return [benchmarks[name] for name in wanted] if wanted else list(benchmarks.values())


def _benchmark(name: str, entry: dict[str, Any], file: Path, folder: Path) -> Benchmark:
    where = f"{file}: {name}"
    _refuse_unknown(entry, KNOWN_KEYS, where)
    _check(isinstance(entry["cmd"], str) and entry["cmd"].strip(), f"{where}: cmd should be one text", entry["cmd"])
    _words(entry["cmd"], where)
    return Benchmark(
        name=name,
        command=" ".join(entry["cmd"].split()),
        description=" ".join(str(entry.get("description") or "").split()),
        parameters={
            str(name): _values(name, values, where) for name, values in _mapping(entry, "parameters", where).items()
        },
        env={str(key): "" if value is None else str(value) for key, value in _mapping(entry, "env", where).items()},
        location=str(entry.get("location") or ""),
        patterns={
            str(metric): _pattern(metric, about, where) for metric, about in _mapping(entry, "data", where).items()
        },
        metrics=_metrics(entry.get("metrics"), where),
        output=_output(entry.get("output"), where),
        small=str(entry.get("small") or ""),
        timeout=_timeout(entry.get("timeout"), where),
        folder=folder,
    )


def _check(good: object, sentence: str, found: object) -> None:
    """Raise the `UserError` "<sentence>, not <found>" unless `good`."""
    if not good:
        raise UserError(f"{sentence}, not {found!r}")


def _refuse_unknown(keys: Iterable[Any], known: Iterable[str], where: str) -> None:
    for key in keys:
        if key not in known:
            raise UserError(f"{where}: there is no key {key!r}{did_you_mean(str(key), sorted(known))}")


def _metrics(found: Any, where: str) -> tuple[str, ...]:
    names = [found] if isinstance(found, str) else found or []
    good = isinstance(names, list) and all(isinstance(name, str) for name in names)
    _check(good, f"{where}: metrics should be a list of names", found)
    return tuple(names)


def _timeout(found: Any, where: str) -> float | None:
    if found is None:
        return None
    good = not isinstance(found, bool) and isinstance(found, int | float) and found > 0
    _check(good, f"{where}: timeout should be a number of seconds above 0", found)
    return float(found)


def _mapping(entry: dict[str, Any], key: str, where: str) -> dict[Any, Any]:
    found = entry.get(key) or {}
    if isinstance(found, list) and all(isinstance(part, dict) for part in found):
        found = {name: value for part in found for name, value in part.items()}
    _check(isinstance(found, dict), f"{where}: {key} should hold 'name: value' lines", found)
    return found


def _values(name: Any, found: Any, where: str) -> list[str]:
    values = found if isinstance(found, list) else str(found).split(",")
    good = found is not None and values and not any(isinstance(one, dict | list) for one in values)
    _check(good and not isinstance(found, dict), f"{where}: the parameter {name!r} should be a list of values", found)
    return [str(value).strip() for value in values]


def _pattern(metric: str, about: Any, where: str) -> Pattern:
    if not isinstance(about, dict) or "regexp" not in about:
        raise UserError(f"{where}: the metric {metric!r} needs a regexp")
    _refuse_unknown(about, PATTERN_KEYS, f"{where}: {metric}")
    try:
        regexp = re.compile(str(about["regexp"]))
    except re.error as error:
        raise UserError(f"{where}: the regexp of {metric!r} is wrong: {error}") from None
    _check(regexp.groups == 1, f"{where}: the regexp of {metric!r} should have one group", regexp.groups)
    reduction = about.get("reduction_type", "mean")
    if reduction not in ("mean", "final"):
        raise UserError(f"{where}: reduction_type of {metric!r} is {reduction!r}; choose mean or final")
    skip = about.get("skip", 0)
    good = not isinstance(skip, bool) and isinstance(skip, int) and skip >= 0
    _check(good, f"{where}: skip of {metric!r} should be a number of first matches", skip)
    return Pattern(regexp, skip, reduction)


def _output(found: Any, where: str) -> tuple[tuple[str, str], ...]:
    said = f"{where}: output should hold pairs of title and metric"
    _check(found is None or isinstance(found, list), said, found)
    pairs = [next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else item for item in found or ()]
    for pair in pairs:
        _check(isinstance(pair, list | tuple) and len(pair) == 2, said, pair)
    return tuple((str(title), str(metric)) for title, metric in pairs)


def _fill(text: str, values: Mapping[str, str], name: str) -> str:
    def value(match: re.Match[str]) -> str:
        key = match[1]
        if key not in values:
            hint = did_you_mean(key, values)
            raise UserError(f"{name}: the command names {{{key}}}, which is not among its parameters{hint}")
        return values[key]

    # ${NAME} is a variable of the shell, not a parameter.
    return re.sub(r"(?<!\$)\{([A-Za-z_][A-Za-z_0-9-]*)\}", value, text)


def _words(command: str, where: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UserError(f"{where}: the command cannot be split into words ({error}): {command}") from None


def _expand(text: str, environment: Mapping[str, str] | None) -> str:
    return string.Template(text).safe_substitute(os.environ if environment is None else environment)
