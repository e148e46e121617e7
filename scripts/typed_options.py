"""Write src/conveyor/options/typed.py and typed_data.py, the keyword arguments of `conveyor.train`, from the declarations."""

import textwrap
from pathlib import Path

from conveyor.options import Spec, specs
from conveyor.options.parser import explained

OPTIONS = Path(__file__).parent.parent / "src" / "conveyor" / "options"
TARGETS = {"data": OPTIONS / "typed_data.py", "all": OPTIONS / "typed.py"}
ARGUMENTS = ("model", "data")
"""Arguments of their own: they take objects too."""
PATHS = ("data_dir", "weights", "weights_dir", "run_dir", "checkpoint_path", "profile_dir")
OPEN = ("log_style",)
"""Options whose choices other packages add (`conveyor.hooks`): any text here, checked when the run starts."""
TYPES = {
    "Duration": "str | float",
    "Fraction": "str | float",
    "str": "str",
    "int": "int",
    "float": "float",
    "bool": "bool",
}


def annotation(spec: Spec) -> str:
    if spec.about.choices and spec.kind.item is str and spec.name not in OPEN:
        one = f"Literal[{', '.join(repr(choice) for choice in spec.about.choices)}]".replace("'", '"')
    else:
        one = TYPES[spec.kind.item.__name__]
    if spec.name in PATHS:
        one = "str | Path"
    made = f"Sequence[{one}]" if spec.kind.many else one
    return f"{made} | None" if spec.kind.optional else made


def text(kind: str) -> str:
    """One of the two files: the options of images, or all others, whose class inherits from that one."""
    base = "TypedDict" if kind == "data" else "DataOptions"
    head = ["from collections.abc import Sequence", "from pathlib import Path"]
    if kind == "data":
        head.append("from typing import Literal, TypedDict")
    else:
        head += ["from typing import Literal", "", "from conveyor.options.typed_data import DataOptions"]
    lines = [
        '"""The options of `conveyor.train` and `conveyor.validate` as keyword arguments, for editors and type checkers.',
        "",
        "Made by scripts/typed_options.py from the declarations; a test keeps it current.",
        '"""',
        "",
        *head,
        "",
        "",
        f"class {'DataOptions' if kind == 'data' else 'TrainOptions'}({base}, total=False):",
        '    """Every option by its name; what is left out has its default."""',
        "",
    ]
    for spec in specs().values():
        if spec.name not in ARGUMENTS and (spec.section == "data") == (kind == "data"):
            said = explained(spec).replace("\\", "\\\\").replace('"', "'")
            lines.append(f"    {spec.name}: {annotation(spec)}")
            lines += textwrap.wrap(f'"""{said}"""', 119, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for kind, target in TARGETS.items():
        target.write_text(text(kind), encoding="utf-8")
