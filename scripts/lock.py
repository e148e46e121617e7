"""Write requirements/*.txt: the exact versions in this environment, as far as the package asks for them, with hashes.

`core.txt` holds what `conveyor train` needs, `all.txt` every extra and the tools of the developers, `docs.txt` what builds
the site. The hashes are those
of the package index, over all files of a version that fit this Python or a later one on any system. `torch.txt` has none:
which build is right (CPU, which CUDA) depends on the machine, and pip takes hashes for all requirements of a file or none.
For the same reason the environments of `peers/` that hold torch have none; the others get what they need and its hashes.
"""

import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

BUILD_TOOLS = ["hatchling", "editables"]
WITHOUT_HASH = "torch"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
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


class Links(HTMLParser):
    """(file name, SHA-256) of every link on a page of the index."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        link = dict(attrs).get("href") or ""
        path, _, digest = link.partition("#sha256=")
        if tag == "a" and digest:
            self.found.append((path.rsplit("/", 1)[1], digest))


def hashes(name: str, version: str) -> list[str]:
    """The hashes of all files of a version that pip could choose."""
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    request = urllib.request.Request(f"{INDEX}/{name}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        page = Links()
        page.feed(answer.read().decode())
    found = sorted({digest for file, digest in page.found if fits(file, version)})
    if not found:
        raise SystemExit(f"{INDEX} has no file of {name} {version} that fits")
    return found


def fits(file: str, version: str) -> bool:
    """Whether `file` is this version, as source or for CPython from this one on."""
    try:
        if not file.endswith(".whl"):
            return str(parse_sdist_filename(file)[1]) == version
        _, found, _, tags = parse_wheel_filename(file)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False
    oldest = sys.version_info.minor
    pythons = [(tag.abi, re.fullmatch(r"(cp|py)3(\d*)", tag.interpreter)) for tag in tags]
    usable = (
        python and (abi in ("abi3", "none") or int(python[2] or 0) >= oldest) and not abi.endswith("t")
        for abi, python in pythons
    )
    return str(found) == version and any(usable)


def lines(versions: dict[str, str]) -> str:
    """The requirements of a file, each with its hashes."""
    return "".join(
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in hashes(name, version))]) + "\n"
        for name, version in sorted(versions.items())
    )


def lock_peer(file: Path) -> None:
    """Complete the pinned versions of an environment by what they need, each with its hashes; the comment stays."""
    text = file.read_text()
    pinned = re.findall(r"^[\w.-]+==[^\s\\]+", text, re.MULTILINE)
    if any(line.startswith((f"{WITHOUT_HASH}==", "-r ")) for line in text.splitlines()):
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as asked:
        asked.write("\n".join(pinned))
        asked.flush()
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--report",
            "-",
        ]
        report = json.loads(subprocess.run([*command, "-r", asked.name], check=True, stdout=subprocess.PIPE).stdout)
    found = {canonical(one["metadata"]["name"]): one["metadata"]["version"] for one in report["install"]}
    file.write_text(text.splitlines(keepends=True)[0] + lines(found))


def main() -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    core = closure(project["dependencies"] + BUILD_TOOLS)
    everything = closure(
        [
            *project["dependencies"],
            *BUILD_TOOLS,
            *(
                need
                for name in ("track", "plot", "export", "serve", "remote", "parquet", "sweep", "dev")
                for need in extras[name]
            ),
        ]
    )
    rest = {name: version for name, version in everything.items() if name not in core}
    site = {name: version for name, version in closure(extras["docs"]).items() if name not in everything}
    torch = core.pop(WITHOUT_HASH)
    folder = HERE / "requirements"
    (folder / "core.txt").write_text("# Made by `make lock`: what training needs besides torch.\n" + lines(core))
    (folder / "all.txt").write_text("# Made by `make lock`: every extra and the tools.\n-r core.txt\n" + lines(rest))
    (folder / "docs.txt").write_text("# Made by `make lock`: what builds the site.\n-r all.txt\n" + lines(site))
    note = "# Made by `make lock`: the build that fits the machine, so without a hash; what it needs is in core.txt.\n"
    (folder / "torch.txt").write_text(f"{note}{WITHOUT_HASH}=={torch}\n")
    for file in sorted(folder.glob("peers/*.txt")):
        lock_peer(file)


if __name__ == "__main__":
    main()
