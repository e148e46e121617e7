"""Options in YAML: plain files, and named configurations with explicit `base:` inheritance."""

import functools
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from conveyor import hooks
from conveyor.errors import UserError, did_you_mean

BASE_KEY = "base"
MOST_BYTES, MOST_NODES, MOST_LEVELS = 1 << 20, 20_000, 50
"""Bounds of a YAML file: its size, its values and its nesting once every alias stands for a copy."""


def read_mapping(path: str | Path) -> dict[str, Any]:
    """The mapping at the top of a YAML file; a UserError names the file and the line of a mistake."""
    return parse_mapping(read_text(path), str(path))


def read_text(path: str | Path) -> str:
    """A file's text, no more of it than `parse` takes."""
    try:
        with open(path, "rb") as file:
            return file.read(MOST_BYTES + 1).decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def parse_mapping(text: str, where: str) -> dict[str, Any]:
    found = parse(text, where)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UserError(f"{where} should hold options as 'name: value' lines, not {type(found).__name__}")
    return found


def parse(text: str, where: str) -> Any:
    """What a YAML text holds, in bounded time and memory; a UserError names the place of a mistake."""
    import yaml

    if len(text) > MOST_BYTES:
        raise UserError(f"{where} is too large for a file of options: at most {MOST_BYTES} bytes are read")
    try:
        return yaml.load(text, Loader=_loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{where}{line} is not valid YAML: {problem}") from None
    except (ValueError, OverflowError) as error:  # impossible numbers and dates
        raise UserError(f"{where} is not valid YAML: {str(error)[:200]}") from None


@functools.cache
def _loader() -> Any:
    """YAML's safe loader with two more refusals: a key given twice, which plain YAML accepts, and too many values.

    An alias takes three letters and stands for all values of its anchor: ten lines of ten aliases each are 10^10
    values, which merging (`<<`), printing or comparing would create. So for each node the values are counted as if
    every alias were a copy.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self._inside = self._composed = 0
            self._held: dict[int, tuple[int, int]] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            """`_held` gets (values, levels) of each node once it is complete."""
            mark, alias = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
            self._inside += 1
            self._composed += 1
            _bound(self._composed <= MOST_NODES, f"it holds more than {MOST_NODES} values", mark)
            _bound(self._inside <= MOST_LEVELS, "it is nested too deeply", mark)
            node = super().compose_node(parent, index)
            self._inside -= 1
            if not alias:
                entries = node.value if isinstance(node, yaml.CollectionNode) else ()
                parts = [part for entry in entries for part in (entry if isinstance(entry, tuple) else (entry,))]
                held = [self._held[id(part)] for part in parts]
                depth = max((below for _, below in held), default=0)
                self._held[id(node)] = (1 + sum(count for count, _ in held), 1 + depth)
            _bound(id(node) in self._held, "an alias stands inside its own anchor", mark)
            values, levels = self._held[id(node)]
            _bound(values <= MOST_NODES, f"its aliases stand for more than {MOST_NODES} values", mark)
            _bound(levels <= MOST_LEVELS, "its aliases are nested too deeply", mark)
            return node

    def mapping(loader: Any, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:str":
                if key_node.value in seen:
                    line = key_node.start_mark.line + 1
                    raise yaml.YAMLError(f"the key {key_node.value!r} stands twice (line {line})")
                seen.add(key_node.value)
        loader.flatten_mapping(node)
        result: dict[Any, Any] = yaml.SafeLoader.construct_mapping(loader, node, deep=True)
        return result

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return Loader


def _bound(kept: bool, problem: str, mark: Any) -> None:
    import yaml

    if not kept:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


Entry = Mapping[str, Any]
Translated = tuple[str, Callable[[], Entry]]
"""The file of a configuration that a package above adds, and what gives its options (`conveyor.hooks`)."""


class Configurations:
    """Named configurations: a mapping of name to options, where `base: NAME` inherits from another."""

    def __init__(self, entries: Mapping[str, Entry | Callable[[], Entry]], where: Mapping[str, str]) -> None:
        self._entries = entries
        self.where = where
        """The file of each name, in order."""

    @classmethod
    def from_files(
        cls, texts: Mapping[str, str], translated: Mapping[str, Translated] | None = None
    ) -> "Configurations":
        """From file name -> YAML text; a name defined in two files is an error."""
        where = {name: file for name, (file, _) in (translated or {}).items()}
        entries: dict[str, Entry | Callable[[], Entry]] = {name: ask for name, (_, ask) in (translated or {}).items()}
        for file, text in texts.items():
            for name, entry in parse_mapping(text, file).items():
                if name in entries:
                    raise UserError(f"{file}: the configuration {name!r} is already defined in {where[name]}")
                if not isinstance(entry, dict):
                    raise UserError(f"{file}: the configuration {name!r} should hold 'option: value' lines")
                entries[name], where[name] = entry, file
        return cls(entries, where)

    def entry(self, name: str) -> Entry:
        """What the configuration says itself."""
        found = self._entries[name]
        return found() if callable(found) else found

    def chain(self, name: str) -> list[str]:
        """The configuration and those that it inherits from, the nearest first."""
        chain: list[str] = []
        current: str | None = name
        while current is not None:
            if current in chain:
                raise UserError(f"{self.where[name]}: base: goes in a circle: {' -> '.join([*chain, current])}")
            if current not in self.where:
                asker = f"{self.where[chain[-1]]}: {chain[-1]!r} has base: {current!r}, but " if chain else ""
                hint = did_you_mean(current, self.where) or ": `conveyor configs` lists them all"
                raise UserError(f"{asker}there is no configuration {current!r}{hint}")
            chain.append(current)
            base = self.entry(current).get(BASE_KEY)
            if base is not None and not isinstance(base, str):
                raise UserError(f"{self.where[current]}: base of {current!r} should be one name, not {base!r}")
            current = base
        return chain

    def resolve(self, name: str) -> dict[str, Any]:
        """The options of a configuration with all that it inherits; later values win."""
        merged: dict[str, Any] = {}
        for link in reversed(self.chain(name)):
            merged.update(
                {str(key).replace("-", "_"): value for key, value in self.entry(link).items() if key != BASE_KEY}
            )
        return merged


@functools.cache
def shipped() -> Configurations:
    """The configurations that come with the package: `configs/*.yml`, and those that packages above add."""
    return _with_shipped({})


def _with_shipped(texts: Mapping[str, str]) -> Configurations:
    folder = resources.files("conveyor") / "configs"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yml")), key=lambda entry: entry.name)
    own = {f"configs/{entry.name}": entry.read_text(encoding="utf-8") for entry in files}
    added = {name: one for every in hooks.every("configurations") for name, one in every().items()}
    return Configurations.from_files({**own, **texts}, added)


def configuration(name: str) -> tuple[dict[str, Any], str]:
    """Options of `name`: a shipped configuration, or `FILE.yml` (plain options) or `FILE.yml:NAME`."""
    file, _, entry = name.partition(":")
    if not file.endswith((".yml", ".yaml")):
        return shipped().resolve(name), f"configuration {name}"
    if not entry:
        return read_mapping(file), file
    return _with_shipped({file: read_text(file)}).resolve(entry), f"{file}:{entry}"
