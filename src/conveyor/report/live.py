"""A run in a notebook while it goes on: a bar, one line and the curves, read from its folder.

The workers may be other processes; nothing is asked of them.
"""

import contextvars
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.monitor.records import number
from conveyor.report.inputs import read_run
from conveyor.report.sections import notebook

SECONDS = 1.0
"""Between two looks at the folder."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return getattr(found, "kernel", None) is not None


@contextmanager
def shown(folder: Path) -> Iterator[None]:
    """Show the run in `folder` under the cell for the time of the `with` block, and as it ended."""
    from IPython.display import HTML, display

    handle: Any = display(HTML(page(folder)), display_id=True)
    over = threading.Event()
    last = ""

    def refresh() -> None:
        nonlocal last
        drawn = page(folder)
        if drawn != last:
            handle.update(HTML(drawn))
            last = drawn

    def watch() -> None:
        while not over.wait(SECONDS):
            refresh()

    # With the cell's context, so that what is shown belongs to the cell.
    watcher = threading.Thread(target=contextvars.copy_context().run, args=(watch,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        refresh()


def page(folder: Path) -> str:
    """The bar, the last figures and the curves of the run in `folder`, as far as it has come."""
    try:
        run = read_run(folder)
    except (UserError, OSError, ValueError):  # not there yet, or just being written
        return f"<p>{escape(str(folder))}: starting</p>"
    total = int(run.spec.get("updates_total") or 0)
    row = run.metrics[-1] if run.metrics else {}
    done = int(number(row, "update"))
    words = [f"update {done} of {total}"]
    words += [f"loss {number(row, 'loss'):.4f}"] if "loss" in row else []
    if run.validations and "accuracy" in run.validations[-1]:
        words.append(f"validation {number(run.validations[-1], 'accuracy'):.2f} %")
    bar = f'<progress max="{total or 1}" value="{done}" style="width:420px;max-width:100%"></progress>'
    return bar + notebook(run, ", ".join(words))
