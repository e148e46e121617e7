import pytest

from conveyor.bench.serving import Load, around, describe, growth


def test_growth_compares_the_end_with_the_second_quarter() -> None:
    assert growth([0.0] * 4 + [100.0] * 12) == 0.0, "the first quarter may fill caches"
    assert growth([100.0 + step for step in range(40)]) == pytest.approx(20.0)
    assert growth([1.0, 2.0]) == 0.0


def test_a_round_is_compared_with_the_direct_rates_around_it() -> None:
    assert around([10.0, 10.0, 12.0]) == [10.0, 11.0]


def test_a_load_tells_what_everybody_used() -> None:
    load = Load(50.0, 100, ("late",), 1.5, 20.0, 2.0, 0.5, 0.25, 3.0, (5.0,) * 8)
    said = describe(load)
    assert "1 failed" in said
    assert "clients 0.5, server 0.2, engines 3.0 in 2.0 s" in said
    assert "grew +0.0 MiB" in said
