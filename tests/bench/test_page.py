"""The page and the head of its table in a README, made from records."""

import dataclasses
from pathlib import Path

import pytest

from conveyor.bench import page, scaling
from conveyor.bench.records import Record, Sample, make_record
from conveyor.bench.tables import peers_rows
from conveyor.errors import UserError


def peers_record(name: str, kind: str, ours: float, theirs: dict[str, float]) -> Record:
    results = {"conveyor rate": Sample("img/s", (ours, ours * 1.1))}
    for peer, rate in theirs.items():
        results[f"{peer} rate"] = Sample("img/s", (rate, rate * 1.1))
    return make_record(name, results, kind=kind)


def growth_record(benchmark: str, value: str, rate: float, memory: float | None) -> Record:
    results = {"images_per_second": Sample("img/s", (rate,))}
    if memory is not None:
        results["memory_mib"] = Sample("MiB", (memory,))
    return make_record(f"{benchmark}={value}", results, benchmark=benchmark, parameters={"batch": value})


def test_the_head_shows_the_fastest_other_program_even_if_it_is_ahead(tmp_path: Path) -> None:
    peers_record("inference-x", "inference", 5.0, {"slow": 4.0}).save(tmp_path / "benchmarks" / "records")
    others = {"slow": 5.0, "fast": 20.0, "conveyor, one process": 8.0}
    peers_record("training-x", "training", 10.0, others).save(tmp_path / "benchmarks" / "records")
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{page.BEGIN}\nold\n{page.END}\nrest\n")
    page.write_page(tmp_path / "benchmarks", readme)
    text = readme.read_text()
    assert "old" not in text
    assert text.startswith("# Title\n")
    assert text.endswith(f"{page.END}\nrest\n")
    training, inference = text.index("training-x"), text.index("inference-x")
    assert training < inference
    assert "fast: 21" in text
    assert "0.50x" in text
    assert "(benchmarks/README.md)" in text
    page.write_page(tmp_path / "benchmarks", readme)
    assert readme.read_text() == text


def test_the_head_has_the_newest_record_of_each_setting_and_says_where_it_was_made(tmp_path: Path) -> None:
    records = tmp_path / "benchmarks" / "records"
    for name, processor, time in [
        ("training-x", "old", "20260101T000000"),
        ("training-y", "old", "20260102T000000"),
        ("training-x", "new", "20260103T000000"),
        ("training-z", "other AVX2", "20260102T000000"),
    ]:
        one = peers_record(name, "training", 10.0, {"other": 5.0})
        dataclasses.replace(one, machine=one.machine | {"processor": processor}, time=time).save(records)
    readme = tmp_path / "README.md"
    readme.write_text(f"{page.BEGIN}\n{page.END}\n")
    written = page.write_page(tmp_path / "benchmarks", readme)
    head = [line.split(" | ") for line in readme.read_text().splitlines() if line.startswith("| training-")]
    assert sorted((cells[0], cells[-1]) for cells in head) == [
        ("| training-x", "new, 20260103T0 |"),
        ("| training-y", "old, 20260102T0 |"),
    ]
    assert written.read_text().count("| training-") == 4


def test_a_ratio_beside_rates_that_say_something_else_shows_both() -> None:
    results = {"conveyor rate": Sample("img/s", (10.0, 20.0, 30.0)), "other rate": Sample("img/s", (12.0, 13.0, 40.0))}
    record = make_record("training-x", results, kind="training")
    assert page.head_rows([record])[0][1:4] == ["20", "other: 13", "0.83x (0.75..1.54); of the medians 1.54x"]
    assert peers_rows([record])[1][4] == "0.83x (0.75..1.54); of the medians 1.54x"
    results["other rate"] = Sample("img/s", (12.0, 13.0))
    record = make_record("training-x", results, kind="training")
    assert page.head_rows([record])[0][1:4] == ["15", "other: 12.5", "1.19x (0.83..1.54)"], (
        "of the rounds that both ran"
    )


def test_a_rate_that_is_not_in_images_per_second_says_so() -> None:
    results = {name: Sample("img/CPU-s", (10.0, 12.0)) for name in ("conveyor rate", "other rate")}
    record = make_record("data-x", results, kind="data")
    assert [row[2] for row in peers_rows([record])] == ["11 img/CPU-s (10..12, n=2)"] * 2


def test_without_records_no_page_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no records in"):
        page.write_page(tmp_path / "mistyped")
    assert not (tmp_path / "mistyped").exists()


def test_one_round_is_not_called_a_lead(tmp_path: Path) -> None:
    results = {"conveyor rate": Sample("img/s", (12.0,)), "other rate": Sample("img/s", (10.0,))}
    once = make_record("serving-x", results, kind="serving")
    often = peers_record("training-x", "training", 12.0, {"other": 10.0})
    assert [row[-1] for row in peers_rows([once, often])] == ["", "ahead in the only round", "", "ahead"]


def test_a_readme_without_markers_is_refused(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{page.BEGIN}\n")
    with pytest.raises(UserError, match="benchmarks: end"):
        page.write_head(readme, [], tmp_path / "page.md")


def test_growth_is_a_table_and_a_plot_in_the_order_of_the_values(tmp_path: Path) -> None:
    for value, rate, memory in (("16", 40.0, 900.0), ("2", 20.0, None), ("8", 35.0, 600.0)):
        growth_record("batch", value, rate, memory).save(tmp_path / "records")
    make_record("bench-all", {"time": Sample("min", (1.0,))}, **{page.LEFT_OUT: ["data: all of it"]}).save(
        tmp_path / "records"
    )
    text = page.write_page(tmp_path).read_text()
    assert text.index("| 2 | 20 | - |") < text.index("| 8 | 35 | 600 |") < text.index("| 16 | 40 | 900 |")
    assert "- data: all of it" in text
    chart = (tmp_path / "growth-batch.svg").read_text()
    assert chart.count("<circle") == 5
    assert chart.count("<polyline") == 2


def test_growth_shows_the_spread_of_several_runs_and_whose_memory_it_is(tmp_path: Path) -> None:
    results = {"images_per_second": Sample("img/s", (20.0, 23.0, 21.0)), "memory_mib": Sample("MiB", (600.0, 604.0))}
    record = make_record("lanes_layout=2x1", results, benchmark="lanes", parameters={"layout": "2x1"})
    record.save(tmp_path / "records")
    text = page.write_page(tmp_path).read_text()
    assert "| 2x1 | 21 (20..23, n=3) | 602 (600..604, n=2) |" in text
    assert "largest worker" in text
    assert "largest worker" in (tmp_path / "growth-lanes.svg").read_text()


def test_small_and_full_runs_do_not_share_a_table() -> None:
    members = [
        dataclasses.replace(growth_record("x", value, 1.0, 1.0), time=time)
        for value, time in (("1", "2026-01-01"), ("2", "2026-01-03"), ("3", "2026-01-02"))
    ]
    for one, small in zip(members, (True, True, False), strict=True):
        one.conditions["small"] = small
    assert [scaling.label(one) for one in scaling.grouped(members)["x"]] == ["1", "2"]


def test_values_are_ordered_as_numbers_and_words() -> None:
    members = [growth_record("x", value, 1.0, 1.0) for value in ("1x2", "128", "", "--recompute block", "32")]
    assert [scaling.label(one) for one in scaling.grouped(members)["x"]] == [
        "--recompute block",
        "none",
        "1x2",
        "32",
        "128",
    ]


def grown(values: dict[str, tuple[float, ...]], key: str = "start_cpu_seconds") -> list[Record]:
    return [
        make_record(f"files={value}", {key: Sample("", found)}, benchmark="files", parameters={"files": value})
        for value, found in values.items()
    ]


def test_the_exponent_is_the_slope_of_the_logarithms() -> None:
    square = scaling.exponent(grown({"10": (1.0,), "100": (100.0,), "1000": (10_000.0,)}), "start_cpu_seconds")
    assert square is not None
    assert (square.fitted, square.end) == (pytest.approx(2.0), pytest.approx(2.0))
    bent = scaling.exponent(grown({"10": (5.0, 5.0), "100": (5.0, 6.0), "1000": (50.0, 40.0)}), "start_cpu_seconds")
    assert bent is not None
    assert bent.fitted < bent.end  # a fixed cost hides the growth at first
    assert bent.low < bent.fitted < bent.high
    assert bent.rounds == 2
    assert str(bent) == "0.48 (0.45..0.50, n=2), at the end 0.91"


def test_words_two_cases_and_zeros_have_no_exponent(tmp_path: Path) -> None:
    for values in ({"1": (1.0,), "2": (2.0,)}, {"1x1": (1.0,), "2x1": (2.0,), "4x1": (3.0,)}, {"1": (1.0,), "2": (0.0,), "3": (1.0,)}):  # fmt: skip
        assert scaling.exponent(grown(values), "start_cpu_seconds") is None
    for record in grown({"1000": (2.0,), "10000": (2.5,), "100000": (9.0,)}):
        record.save(tmp_path / "records")
    text = page.write_page(tmp_path).read_text()
    assert "| files | CPU s to the first update (spread) |" in text
    assert "| exponent | 0.33, at the end 0.56 |" in text
