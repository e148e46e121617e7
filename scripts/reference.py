"""The pages `options.md` and `api.md` of the site, made from the source while mkdocs builds it (`make docs`)."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conveyor import commands
from conveyor.cli import parser_of
from conveyor.options import specs
from conveyor.options.options import Options
from conveyor.options.parser import explained

PUBLIC = {
    "Training": ("conveyor.api:train", "conveyor.api:validate"),
    "Runs": ("conveyor.api:Run",),
    "Answers": ("conveyor.api:load", "conveyor.infer.classifier:Classifier", "conveyor.infer.predict:Prediction"),
    "Your own code": (
        "conveyor.monitor.callbacks:Callback",
        "conveyor.models.user_module:register",
        "conveyor.data.batch:Dataset",
        "conveyor.errors:UserError",
    ),
}
"""What the page of the Python interface shows: `module:name`."""

HOW_TO = ("recipes", "data", "fine-tuning", "checkpoints", "photographs", "layout", "precision", "gpu", "machines")
"""Pages that show how something is done: their examples come before those of the others."""


LINES = 8
"""Examples of one command at most."""


def pages() -> Iterator[tuple[str, str, list[str]]]:
    """Name, text and lines of code of each page, those of `HOW_TO` first."""
    found = (Path(__file__).resolve().parent.parent / "docs").glob("*.md")
    for page in sorted(found, key=lambda page: (page.stem not in HOW_TO, page.name)):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        yield page.stem, text, [line for block in blocks for line in block.splitlines()]


def command_lines(name: str) -> list[str]:
    """How the pages call a command, once with each set of options."""
    found = {}
    for _, _, lines in pages():
        for line in lines:
            if re.match(rf"conveyor {name}( |$)", line):
                words = re.sub(r" +#.*", "", line).split()
                found.setdefault(frozenset(word for word in words[2:] if word[0] == "-" or word == words[2]), line)
    return list(found.values())[:LINES]


def examples() -> dict[str, str]:
    """By option: how the pages write it, with a value where one of them does, and which page that is."""
    found: dict[str, str] = {}
    for page, text, lines in pages():
        code = lines + re.findall(r"`([^`\n]+)`", text)
        for flag, values in re.findall(r"(?<![\w-])(--[a-z0-9-]+)((?: +(?!--|[(])[^\s#|]+)*)", "\n".join(code)):
            if flag not in found or (values and f"`{flag}`" in found[flag]):
                found[flag] = f"`{flag}{values}` in [{page}]({page}.md)"
    return found


def options_page() -> str:
    """Every option of `conveyor train`, by section, and the arguments of the other commands."""
    shown = examples()
    lines = [
        "# Options",
        "",
        "`conveyor options WORD` searches these on the command line; YAML and Python have the same names.",
        "",
    ]
    for section in dataclasses.fields(Options):
        lines += [f"## {section.name.capitalize()}", "", "| option | meaning [default] |", "|---|---|"]
        for spec in specs().values():
            if spec.section == section.name:
                choices = (
                    f" One of {', '.join(f'`{one}`' for one in spec.about.choices)}." if spec.about.choices else ""
                )
                example = next((f" Example: {shown[flag]}." for flag in spec.flags if flag in shown), "")
                flags = ", ".join(f"`{flag}`" for flag in spec.flags)
                lines.append(f"| {flags} | {_cell(explained(spec))}{choices}{example} |")
        lines.append("")
    lines += ["## Commands", ""]
    for names in commands.NAMES.values():
        for name in names:
            lines += [f"### conveyor {name}", "", commands.load(name).HELP, "", "```text"]
            lines += [parser_of(name).format_usage().strip(), "", *command_lines(name), "```", ""]
    return "\n".join(lines)


def api_page() -> str:
    """The Python interface: signatures and docstrings."""
    lines = ["# Python", ""]
    for title, places in PUBLIC.items():
        lines += [f"## {title}", ""]
        for place in places:
            module, _, name = place.partition(":")
            lines += _described(getattr(importlib.import_module(module), name), f"{_home(name, module)}.{name}", "###")
    return "\n".join(lines)


def _home(name: str, module: str) -> str:
    return "conveyor" if name in importlib.import_module("conveyor").__all__ else module


def _described(found: Any, name: str, level: str) -> list[str]:
    lines = [f"{level} `{name}`", "", "```python", _signature(found, name), "```", "", inspect.getdoc(found) or "", ""]
    if inspect.isclass(found):
        for member, value in sorted(vars(found).items()):
            about = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            shown = inspect.isfunction(about) or isinstance(about, property)
            if shown and not member.startswith("_") and inspect.getdoc(about):
                words = inspect.getdoc(about) or ""
                kind = "" if isinstance(about, property) else "()"
                lines += [f"- `.{member}{kind}`: {' '.join(words.split())}"]
        lines.append("")
    return lines


def _signature(found: Any, name: str) -> str:
    try:
        return f"{name}{inspect.signature(found)}"
    except (TypeError, ValueError):
        return name


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Called by mkdocs."""
    from mkdocs.structure.files import File

    for name, page in (("options.md", options_page()), ("api.md", api_page())):
        files.append(File.generated(config, name, content=page))
    return files
