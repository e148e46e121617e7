"""Programs in processes of their own: alternation, absence with a reason, chatter passed over."""

import sys
from pathlib import Path

from conveyor.bench.page import head_rows, write_page
from conveyor.bench.records import Sample, make_record
from conveyor.bench.tables import newest_records, peers_rows
from conveyor.measure.rounds import Program, run_rounds

GOOD = """
import json, sys
print('chatter')
print({'of': 'a library'})
print([1])
print(json.dumps({'ready': True}), flush=True)
for line in sys.stdin:
    steps = json.loads(line)['steps']
    open(sys.argv[1], 'a').write(sys.argv[2])
    print(json.dumps({'seconds': 2.0, 'images': steps * int(sys.argv[3])}), flush=True)
"""


def program(name: str, code: str, *words: str) -> Program:
    return Program(name, [sys.executable, "-c", code, *words])


def test_rounds_alternate_and_absentees_say_why(tmp_path: Path) -> None:
    order = tmp_path / "order"
    measured = run_rounds(
        [
            program("a", GOOD, str(order), "a", "10"),
            program("b", GOOD, str(order), "b", "20"),
            program("missing", 'print(\'{"unavailable": "not installed"}\')'),
            program("crash", "raise SystemExit('it broke')"),
            program("dies", "print('{\"ready\": true}', flush=True); input(); raise SystemExit('later')"),
        ],
        rounds=3,
        steps=4,
        threads=1,
    )
    assert order.read_text() == "abbaab"
    assert measured.rates == {"a": [20, 20, 20], "b": [40, 40, 40]}
    assert measured.absent == {"missing": "not installed", "crash": "it broke", "dies": "later"}


def test_a_peer_far_behind_is_spared_the_later_rounds(tmp_path: Path) -> None:
    order = tmp_path / "order"
    speeds = {"a": "30", "b": "28", "c": "10"}
    found = [program(name, GOOD, str(order), name, speed) for name, speed in speeds.items()]
    measured = run_rounds(found, rounds=4, steps=1, threads=1, peers=["b", "c"])
    assert order.read_text() == "abccbaabba"
    assert {name: len(rates) for name, rates in measured.rates.items()} == {"a": 4, "b": 4, "c": 2}


def test_a_peer_that_was_spared_stays_out_when_the_best_one_fails(tmp_path: Path) -> None:
    """Its third rate would be compared with our third, which is of another round."""
    order = tmp_path / "order"
    breaks = GOOD.replace("    steps =", "    count = globals().get('count', 0) + 1\n    assert count < 4\n    steps =")
    found = [
        program("a", GOOD, str(order), "a", "30"),
        program("b", breaks, str(order), "b", "28"),
        program("c", GOOD, str(order), "c", "10"),
    ]
    measured = run_rounds(found, rounds=5, steps=1, threads=1, peers=["b", "c"])
    assert order.read_text() == "abccbaabaa"
    assert {name: len(rates) for name, rates in measured.rates.items()} == {"a": 5, "c": 2}
    assert "AssertionError" in measured.absent["b"]


def test_no_round_begins_that_would_end_too_late(tmp_path: Path) -> None:
    slow = GOOD.replace("    steps =", "    import time; time.sleep(0.4)\n    steps =")
    measured = run_rounds(
        [program("a", slow, str(tmp_path / "order"), "a", "1")], rounds=50, steps=9, threads=1, seconds=4.0
    )
    assert 2 <= len(measured.rates["a"]) < 12
    assert measured.steps == 1, "what was run, not what was asked for"


def test_the_head_shows_the_fastest_of_the_others() -> None:
    """Also when another's ratio is less, which a few unlucky rounds of ours can bring about."""
    results = {
        "conveyor rate": Sample("img/s", (10.0, 20.0, 20.0)),
        "fast rate": Sample("img/s", (9.0, 19.0, 19.0)),
        "spared rate": Sample("img/s", (11.0,)),
    }
    [row] = head_rows([make_record("inference-x", results)])
    assert row[:4] == ["inference-x", "20", "fast: 19", "1.05x (1.05..1.11)"]


def test_the_page_keeps_rows_in_which_a_peer_is_ahead(tmp_path: Path) -> None:
    results = {
        "conveyor rate": Sample("img/s", (10.0, 11.0)),
        "plain rate": Sample("img/s", (20.0, 21.0)),
        "conveyor share of GEMM": Sample("%", (70.0, 71.0)),
    }
    record = make_record("training-x", results, absent={"keras": "No module named 'keras'"})
    record.save(tmp_path / "records")
    make_record("limits", {"GEMM": Sample("GFLOP/s", (150.0, 151.0))}).save(tmp_path / "records")
    rows = peers_rows([record])
    assert rows[0][5] == "70 % of GEMM"
    assert rows[1][1:] == ["plain", "20.5 (20..21, n=2)", "0.51x (0.50..0.52)", "0.51x (0.50..0.52)", "behind"]
    assert "No module named 'keras'" in rows[2][5]
    page = write_page(tmp_path).read_text()
    assert "behind" in page
    assert "GFLOP/s" in page
    assert (tmp_path / "peers.svg").read_text().startswith("<svg")
    assert set(newest_records(tmp_path / "records")) == {"training-x", "limits"}
