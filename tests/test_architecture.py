"""The shape of the house: who imports whom, what stays free of torch, how long a file may be."""

import ast
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import conveyor

SOURCE = Path(conveyor.__file__).parent

ARCHITECTURE = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "architecture.py"))
LEVEL = {name: level for level, (_, names) in enumerate(ARCHITECTURE["LAYERS"]) for name in names}
LEVEL |= {"__main__": 0, "__init__": 0}

WITHOUT_TORCH = [
    "conveyor",
    "conveyor.cli",
    "conveyor.options",
    "conveyor.options.parser",
    "conveyor.topology",
    "conveyor.layout",
    "conveyor.data.catalogue",
    "conveyor.models.catalogue",
    "conveyor.optim.schedule",
    "conveyor.spec",
    "conveyor.serve.server",
    "conveyor.dialects",
    "conveyor.commands",
]


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Names of our packages that a file imports at any place."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "conveyor" and len(parts) > 1 and parts[1] in LEVEL:
                found.add(parts[1])
    return found


def test_each_layer_imports_only_from_its_own_and_those_below() -> None:
    """Neighbours of a layer may know each other as long as no circle arises, which is checked below."""
    wrong = []
    for path in modules():
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        wrong += [f"{path.relative_to(SOURCE)} imports {other}" for other in imports(path) if LEVEL[other] < LEVEL[own]]
    assert wrong == []


def test_packages_form_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in modules():
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        graph.setdefault(own, set()).update(imports(path) - {own})
    graph.pop("__init__")
    visiting: list[str] = []
    done: set[str] = set()

    def visit(name: str) -> None:
        assert name not in visiting, f"circle: {' -> '.join([*visiting, name])}"
        if name in done:
            return
        visiting.append(name)
        for other in sorted(graph.get(name, ())):
            visit(other)
        visiting.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in modules()}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}


def test_no_package_has_more_than_25_modules() -> None:
    counts = {folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in modules()}}
    assert {str(folder): count for folder, count in counts.items() if count > 25} == {}


def test_only_the_dialects_know_the_older_programs() -> None:
    """What they add to the rest goes through `conveyor.hooks`."""
    names = r"tensorflow1|tensorflow2|popart|poptorch|popdist|poprun|popvision|graphcore|examples_utils|\bgc-(profile|info)\b"
    words = re.compile(rf"{names}|\bipus?\b|\bmk2_|\bpod(4|16|64|128|256)\b", re.IGNORECASE)
    texts = [
        path for path in SOURCE.rglob("*.*") if path.suffix in (".py", ".yml", ".json", ".html", ".js", ".c", ".h")
    ]
    assert len(texts) > 400
    knowing = [path for path in texts if words.search(path.read_text())]
    assert [str(path) for path in knowing if path.relative_to(SOURCE).parts[0] != "dialects"] == []


ACROSS = """
    test_api_joined test_architecture test_private_torch test_requirements commands/width commands/words configs/shipped
    data/command data/photo/jpeg_header data/readers data/tensorflow dialects/bounding_boxes dialects/choices dialects/commands
    dialects/input_and_layers dialects/meanings dialects/mistakes dialects/original_tests dialects/own_options dialects/printed
    dialects/real_runs dialects/second_step evaluate/calibration_counts evaluate/validation_device infer/calibrated_export
    launch/attack launch/elastic launch/exact_runs launch/jobs launch/mpirun launch/phases launch/recovery launch/signals
    launch/slurm models/field_names models/forward models/fused models/memory_format models/timm optim/half_weights
    pipeline/bad_layer pipeline/compiled pipeline/exact pipeline/exact_further pipeline/layouts plan/measured plan/published report/browser
    run/best_by run/kill run/multi_label run/same_data serve/grpc serve/hostile serve/hostile_grpc serve/http serve/lifecycle
    serve/multi_label serve/page serve/public_clients serve/security training/families training/no_host_wait training/stops
"""
"""Tests of what several modules do together; every other test file is named after the module that it tests."""


def test_the_tests_mirror_the_tree() -> None:
    tests = Path(__file__).parent
    known = {path.relative_to(SOURCE).with_suffix("") for path in modules()}
    found = {path.parent.relative_to(tests) / path.stem.removeprefix("test_") for path in tests.rglob("test_*.py")}
    odd = {str(one) for one in found - known if one.parts[0] not in ("conformance", "docs")}
    assert odd == {one.removeprefix("test_") for one in ACROSS.split()}


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path)
        for path in modules()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_import_does_not_bring_torch(module: str, python: Callable[..., CompletedProcess[str]]) -> None:
    result = python(f"import sys, {module}; sys.exit('torch' in sys.modules)")
    assert result.returncode == 0, result.stderr


def test_modules_that_promise_it_do_not_bring_torch(python: Callable[..., CompletedProcess[str]]) -> None:
    promising = [
        ".".join(("conveyor", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for path in modules()
        if re.search("no torch|without torch", (ast.get_docstring(ast.parse(path.read_text())) or "").lower())
    ]
    assert len(promising) > 50
    code = (
        f"import importlib, sys\nfor name in {promising}:\n"
        "    importlib.import_module(name)\n    assert 'torch' not in sys.modules, name"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr


def test_help_does_not_bring_torch(python: Callable[..., CompletedProcess[str]]) -> None:
    code = (
        "import sys; from conveyor.cli import main, parser_of\n"
        "from conveyor import commands\n"
        "main(['--help'])\n"
        "for names in commands.NAMES.values():\n"
        "    for name in names: parser_of(name).format_help()\n"
        "sys.exit('torch' in sys.modules)"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert "Train:" in result.stdout


def test_the_page_has_fifteen_words_and_thirty_behaviours() -> None:
    assert len(ARCHITECTURE["WORDS"]) == 15
    assert len(ARCHITECTURE["CHANGES"]) >= 30
    named = {file for _, files in ARCHITECTURE["CHANGES"] for file in files}
    assert [file for file in named if not (SOURCE / file).exists()] == []


def test_a_sample_passes_each_package_once_through_functions_that_there_are() -> None:
    packages = [package for package, _, _ in ARCHITECTURE["WAY"]]
    assert len(packages) == len(set(packages))
    for package, _, functions in ARCHITECTURE["WAY"]:
        for function in functions:
            file, name = function.split(": ")
            assert file.startswith(f"{package}/")
            scope: list[ast.stmt] = ast.parse((SOURCE / file).read_text()).body
            for part in name.split("."):
                found = [one for one in scope if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == part]
                assert found, f"{file} has no {name}"
                scope = found[0].body
