"""Write docs/architecture.md: what each package does (its own docstring) and who imports whom, read from the source."""

import ast
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
SOURCE = HERE / "src" / "conveyor"
PAGE = HERE / "docs" / "architecture.md"

LAYERS = [
    ("Front doors", ["cli", "api", "dialects"]),
    ("One module for each command", ["commands"]),
    ("Around a run", ["launch", "bench", "report", "plan", "serve", "request"]),
    ("The life of a run", ["run"]),
    ("How good a model is", ["evaluate"]),
    ("Training, and answers", ["training", "infer"]),
    ("Between workers, between stages", ["world", "pipeline", "checkpoint", "spec"]),
    ("Parts", ["data", "models", "optim", "numerics"]),
    ("Measuring, and what a run shows", ["measure", "monitor"]),
    ("Where and what", ["layout", "topology"]),
    ("The vocabulary", ["options"]),
    ("Ground", ["tree", "hooks", "interrupt", "files", "scratch", "processes", "errors", "version"]),
]
"""Each imports only from its own layer or those below it: read by the test and by the page."""

TEXT = """# Architecture

Made by `scripts/architecture.py` from the source; a test keeps it current.

The way of a sample:
`options -> topology -> layout -> launch -> worker: data -> model (precision, recompute, stages) -> slot gradients -> tree
-> optimiser -> events (log, checkpoint, validate) -> run folder`

| to change | look at |
|---|---|
| an option, its help or its default | `options/` |
| the arithmetic of batches, epochs and events | `topology.py` |
| where a run runs | `layout.py`, `launch/` |
| the order in which gradients are summed | `world/tree.py`, `world/gradients.py`, `world/exchange.py` |
| what happens when a worker dies | `training/handover.py`, `launch/agent.py` |
| the train loop | `training/loop.py`, one page |
| the order of transforms on a model | `training/build_model.py`, one page |
| what a worker does from start to end | `run/worker.py`, one page |
| a network | `models/` |
| the arithmetic of training on a CPU | `numerics/convolution.py`, `numerics/norm_act.py`; kernels in `numerics/native/` |
| what happens to an image | `data/` |
| an original program's option | `dialects/`, one table for each |

## Packages

Each imports only from its own layer or those below it.
"""


def main() -> None:
    text = page()
    if "--check" in sys.argv:
        sys.exit(
            0
            if PAGE.exists() and PAGE.read_text() == text
            else "docs/architecture.md is stale: run scripts/architecture.py"
        )
    PAGE.write_text(text)


def page() -> str:
    lines = [TEXT]
    for title, names in LAYERS:
        lines += [f"### {title}", "", "| package | what | imports |", "|---|---|---|"]
        for name in names:
            files = sorted((SOURCE / name).rglob("*.py")) if (SOURCE / name).is_dir() else [SOURCE / f"{name}.py"]
            if not files or not files[0].exists():
                continue
            sources = [file.read_text() for file in files]
            first = (SOURCE / name / "__init__.py") if (SOURCE / name).is_dir() else files[0]
            about = (
                (ast.get_docstring(ast.parse(first.read_text())) or "")
                .split("\n\n")[0]
                .replace("\n", " ")
                .replace("|", "\\|")
            )
            used = sorted(set().union(*(imports(source) for source in sources)) - {name})
            lines.append(f"| `{name}` | {about} | {', '.join(used)} |")
        lines.append("")
    return "\n".join(lines)


def imports(source: str) -> set[str]:
    """Our packages that a source text imports."""
    known = {name for _, names in LAYERS for name in names}
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            names = parts[1:2] or [alias.name for alias in node.names] if parts[0] == "conveyor" else []
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("conveyor.")]
        else:
            continue
        found.update(name for name in names if name in known)
    return found


if __name__ == "__main__":
    main()
