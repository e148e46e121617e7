"""The page in a real browser: nothing on the console, nothing from the network, charts drawn, tables sortable."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser import Browser, started
from tests.report.make_run import make_run

from conveyor.report.page import write_report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as running:
        yield running


@pytest.fixture(scope="module")
def page(run_folder: Path) -> Path:
    return write_report([run_folder])


DRAWN = """
return Array.from(document.querySelectorAll('svg.chart')).map(chart => {
  const box = chart.getBoundingClientRect();
  const lines = Array.from(chart.querySelectorAll('polyline'));
  return [box.width > 100 && box.height > 60, lines.every(line => line.getBBox().width > 50),
          lines.every(line => getComputedStyle(line).stroke !== 'none')];
});
"""


def test_charts_are_drawn_and_the_console_is_empty(browser: Browser, page: Path) -> None:
    browser.open(page)
    drawn = browser.script(DRAWN)
    assert len(drawn) == 7
    assert all(all(checks) for checks in drawn)
    assert (
        browser.script(
            "return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length"
        )
        == 0
    )
    loaded = browser.script("return Array.from(document.images).map(image => image.complete && image.naturalWidth > 0)")
    assert len(loaded) == 16  # 12 mistakes, a right answer and a training image; two heat maps
    assert all(loaded)
    assert browser.errors() == []


def test_a_click_on_a_heading_sorts_by_number_and_back(browser: Browser, page: Path) -> None:
    browser.open(page)
    column = "return Array.from(document.querySelectorAll('#worst tbody tr')).map(row => parseFloat(row.cells[1].textContent))"
    click = "document.querySelectorAll('#worst th')[1].click()"
    browser.script(click)
    rising = browser.script(column)
    browser.script(click)
    falling = browser.script(column)
    assert rising == sorted(rising)
    assert falling == sorted(rising, reverse=True)
    assert browser.script("return document.querySelectorAll('#worst th')[1].getAttribute('aria-sort')") == "descending"


def test_the_pointer_shows_values(browser: Browser, page: Path) -> None:
    browser.open(page)
    text = browser.script(
        "const chart = document.querySelector('svg.chart'), box = chart.getBoundingClientRect();"
        "chart.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2, clientY: box.top + 50}));"
        "return document.querySelector('.tip').textContent"
    )
    assert text.startswith("epoch ")
    assert "training " in text
    assert "validation " in text
    assert browser.errors() == []


@pytest.mark.parametrize("width", [360, 768, 1200])
def test_no_sideways_scrolling(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width, height=740)
    inner, scroll = browser.script(
        "return [document.documentElement.clientWidth, document.documentElement.scrollWidth]"
    )
    assert inner == width
    assert scroll <= width


def test_dark_and_light(browser: Browser, page: Path) -> None:
    def brightness(dark: bool) -> tuple[float, float]:
        browser.open(page, dark=dark)
        ground, ink = browser.script(
            "const style = getComputedStyle(document.body), sum = text => text.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);"
            "return [sum(style.backgroundColor) / 765, sum(style.color) / 765]"
        )
        return ground, ink

    light, dark = brightness(False), brightness(True)
    assert light[0] > 0.9 > 0.3 > light[1]
    assert dark[0] < 0.2 < 0.8 < dark[1]


def test_a_comparison_sorts_its_runs(browser: Browser, run_folder: Path, tmp_path: Path) -> None:
    others = [make_run(tmp_path / f"run{index}", shift=float(index), mistakes=0) for index in (1, 2)]
    browser.open(write_report([run_folder, *others], tmp_path / "all.html"))
    browser.script("document.querySelectorAll('#runs th')[2].click()")
    best = browser.script(
        "return Array.from(document.querySelectorAll('#runs tbody tr')).map(row => row.cells[0].textContent)"
    )
    assert best == ["resnet20-cifar10", "run1", "run2"]
    assert browser.script("return document.querySelectorAll('svg.chart').length") == 4
    assert browser.script("return document.querySelector('svg.chart').querySelectorAll('polyline').length") == 3
    assert browser.errors() == []


@pytest.mark.parametrize("dark", [False, True])
def test_no_table_is_cut_on_a_telephone(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, width=400, dark=dark)
    assert browser.script("return document.documentElement.scrollWidth") == 400
    wide = "return Array.from(document.querySelectorAll('table')).filter(one => one.offsetWidth > one.parentElement.clientWidth).length"
    assert browser.script(wide) == 0
    assert browser.script("return document.querySelectorAll('#verdict li').length") > 0


@pytest.mark.parametrize("dark", [False, True])
def test_no_table_of_a_comparison_is_cut_on_a_telephone(
    browser: Browser, run_folder: Path, tmp_path: Path, dark: bool
) -> None:
    others = [
        make_run(tmp_path / f"a-run-with-a-long-name-{index}", shift=float(index), mistakes=0) for index in (1, 2)
    ]
    browser.open(write_report([run_folder, *others], tmp_path / "all.html"), width=400, dark=dark)
    assert browser.script("return document.documentElement.scrollWidth") == 400
    wide = "return Array.from(document.querySelectorAll('table')).filter(one => one.offsetWidth > one.parentElement.clientWidth).length"
    assert browser.script(wide) == 0
    assert browser.errors() == []


GAPS = """
const text = cell => { const range = document.createRange(); range.selectNodeContents(cell); return range.getBoundingClientRect(); };
return Array.from(document.querySelectorAll('td.n + td:not(.n)')).filter(cell => cell.offsetParent && cell.textContent.trim()
    && getComputedStyle(cell).display === 'table-cell').map(cell => text(cell).left - text(cell.previousElementSibling).right);
"""


@pytest.mark.parametrize(("width", "least"), [(1280, 30), (400, 11)])
def test_a_text_column_stands_apart_from_the_numbers_before_it(
    browser: Browser, page: Path, width: int, least: float
) -> None:
    browser.open(page, width=width)
    browser.script("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    gaps = browser.script(GAPS)
    assert gaps
    assert min(gaps) >= least
