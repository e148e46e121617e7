"""Write docs/licences.md: what `make install` brings, with version and licence as each package states them itself."""

import re
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
HEAD = """# Licences

Conveyor itself is under the MIT licence. This is what it installs, with the licence that each package's own metadata states
(`python scripts/licences.py` makes this page from the installed packages). Training needs the first table alone.
"""
FILES = {
    "What training needs": ("core.txt", "torch.txt"),
    "What the extras and the tools of developers add": ("all.txt",),
}


def locked(file: str) -> list[str]:
    """The names in a file of requirements."""
    return re.findall(r"^([a-z0-9-]+)==", (HERE / "requirements" / file).read_text(), re.MULTILINE)


def licence(name: str) -> str:
    """The licence in one line: the SPDX expression, else the classifiers, else the first line of the free text."""
    about = metadata.metadata(name)
    if "License-Expression" in about:
        return about["License-Expression"]
    named = [one.split(" :: ")[-1] for one in about.get_all("Classifier") or [] if one.startswith("License :: ")]
    named = [one for one in named if one != "OSI Approved"]
    text = about["License"].strip().partition("\n")[0] if "License" in about else ""
    return ", ".join(named) or text or "not stated"


def page() -> str:
    """The page as text."""
    parts = [HEAD]
    for title, files in FILES.items():
        names = sorted(name for file in files for name in locked(file))
        rows = [f"| {name} | {metadata.version(name).split('+')[0]} | {licence(name)} |" for name in names]
        parts.append("\n".join([f"## {title}\n", "| package | version | licence |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    (HERE / "docs" / "licences.md").write_text(page())
