"""Write requirements/*.txt: the exact versions in this environment, as far as the package asks for them.

`core.txt` holds what `conveyor train` needs, `all.txt` every extra and the tools of the developers.
"""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

BUILD_TOOLS = ["hatchling", "editables"]
HERE = Path(__file__).resolve().parent.parent


def closure(names: list[str]) -> dict[str, str]:
    """Canonical name -> version of the given distributions and everything they need here."""
    found: dict[str, str] = {}
    todo = [(Requirement(name), frozenset[str]()) for name in names]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement, _ = todo.pop()
        key = (canonical(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        distribution = metadata.distribution(requirement.name)
        found[canonical(distribution.metadata["Name"])] = distribution.version.split("+")[0]
        for text in distribution.requires or []:
            needed = Requirement(text)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append((needed, frozenset()))
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    core = closure(project["dependencies"] + BUILD_TOOLS)
    everything = closure(
        [
            *project["dependencies"],
            *BUILD_TOOLS,
            *(need for name in ("track", "plot", "export", "serve", "dev") for need in extras[name]),
        ]
    )
    core_text = "".join(f"{name}=={version}\n" for name, version in sorted(core.items()))
    rest = "".join(f"{name}=={version}\n" for name, version in sorted(everything.items()) if name not in core)
    folder = HERE / "requirements"
    (folder / "core.txt").write_text("# Made by `make lock`: what training needs.\n" + core_text)
    (folder / "all.txt").write_text("# Made by `make lock`: every extra and the tools.\n-r core.txt\n" + rest)


if __name__ == "__main__":
    main()
