"""A run in a notebook: a bar and curves under the cell while it goes on, and as it ended."""

import re
from pathlib import Path

import pytest
from tests.report.make_run import make_run

from conveyor.report import live

CELLS = (
    "import conveyor",
    "run = conveyor.train(epochs=3, run_dir='run', layout={layout!r}, accumulation=2, logs_per_epoch=4)\nrun",
    "run.plot()",
)


def test_a_page_for_every_state_of_the_folder(tmp_path: Path) -> None:
    assert "starting" in live.page(tmp_path / "absent")
    assert not live.in_notebook()
    folder = make_run(tmp_path / "run")
    drawn = live.page(folder)
    assert "<progress" in drawn
    assert "<svg" in drawn


@pytest.mark.conformance
@pytest.mark.parametrize("layout", ["1x1", "2x1"])
def test_a_notebook_shows_the_run(tmp_path: Path, layout: str) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed: pip install nbclient ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install nbclient ipykernel")
    cells = [nbformat.v4.new_code_cell(text.format(layout=layout)) for text in CELLS]
    seen: list[str] = []
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(cells=cells), timeout=250, resources={"metadata": {"path": str(tmp_path)}}
    )
    update = client.process_message

    def watched(message: dict, *rest: object) -> object:  # type: ignore[type-arg]
        if message["msg_type"] == "update_display_data":
            seen.append(message["content"]["data"]["text/html"])
        return update(message, *rest)

    client.process_message = watched
    client.execute()
    assert len(seen) > 1, "it was refreshed while the run went on"
    shown = [output["data"]["text/html"] for output in cells[1].outputs if "text/html" in output.get("data", {})]
    first, last = shown[0], shown[-1]
    assert re.search(r'<progress max="(\d+)" value="\1"', first), "it shows the end"
    assert first.count("<svg") >= 2
    assert "accuracy" in last
    assert "done after" in last
    assert any("image/png" in output.get("data", {}) for output in cells[2].outputs)
