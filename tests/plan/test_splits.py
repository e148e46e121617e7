"""The split chooser against trying every cut."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.plan.costs import Linear, Model, UnitCost
from conveyor.plan.splits import best_split, split_model, stage_times


def brute_force(model: Model, stages: int, batch: int, *, recompute: str, in_flight: list[int], memory: float, seconds_per_byte: float) -> tuple[float, float] | None:  # fmt: skip
    """(slowest stage, bytes sent) of the best cut, computed from the units directly."""
    best: tuple[float, float] | None = None
    count = len(model.units)
    for middle in itertools.combinations(range(1, count), stages - 1):
        cuts = (0, *middle, count)
        slowest, sent, ok = 0.0, 0.0, True
        for stage, (start, stop) in enumerate(itertools.pairwise(cuts)):
            units = model.units[start:stop]
            forward = sum(unit.forward(batch) for unit in units)
            time = forward * (2 if recompute != "none" else 1) + sum(unit.backward(batch) for unit in units)
            if start:
                time += model.units[start - 1].boundary_bytes * batch * seconds_per_byte
                sent += model.units[start - 1].boundary_bytes * batch
            if stop < count:
                time += model.units[stop - 1].boundary_bytes * batch * seconds_per_byte
            kept = sum(unit.saved_bytes for unit in units) * batch
            extra = 0.0
            if recompute == "stage":
                before = model.units[start - 1].boundary_bytes if start else model.input_bytes
                kept, extra = min(kept, before * batch), kept
            need = (
                3 * sum(unit.weight_bytes for unit in units)
                + kept * in_flight[stage]
                + extra
                + 2 * max(unit.output_bytes for unit in units) * batch
            )
            ok = ok and need <= memory
            slowest = max(slowest, time)
        if ok and (best is None or (slowest, sent) < best):
            best = (slowest, sent)
    return best


whole = st.integers(0, 20).map(float)


@st.composite
def models(draw: st.DrawFn) -> Model:
    count = draw(st.integers(2, 8))
    units = [
        UnitCost(
            f"u{index}",
            Linear(draw(whole), draw(whole)),
            Linear(draw(whole), draw(whole)),
            saved_bytes=draw(whole),
            boundary_bytes=draw(whole),
            output_bytes=draw(whole),
            weight_bytes=draw(whole),
        )
        for index in range(count)
    ]
    return Model(units, input_bytes=draw(whole))


@settings(max_examples=60, deadline=None)
@given(
    models(),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["none", "stage"]),
    st.integers(0, 1500),
    st.booleans(),
)
def test_it_is_the_optimum(model: Model, stages: int, batch: int, recompute: str, memory: int, sending: bool) -> None:
    stages = min(stages, len(model))
    held = list(range(stages, 0, -1))
    rate = 0.5 if sending else 0.0
    found = split_model(model, stages, batch, recompute=recompute, in_flight=held, memory=memory, seconds_per_byte=rate)
    wanted = brute_force(
        model, stages, batch, recompute=recompute, in_flight=held, memory=memory, seconds_per_byte=rate
    )
    if wanted is None:
        assert found is None
    else:
        assert found is not None
        assert (found.slowest, found.bytes_sent) == pytest.approx(wanted)
        assert found.cuts[0] == 0
        assert found.cuts[-1] == len(model)
        assert len(found.cuts) == stages + 1


def test_a_stage_that_only_fits_early_in_the_pipeline() -> None:
    units = [UnitCost(f"u{i}", Linear(0, 1), Linear(0, 1), saved_bytes=10) for i in range(4)]
    model = Model(units, 0)
    free = split_model(model, 2, 1, in_flight=[4, 1], memory=1000)
    tight = split_model(model, 2, 1, in_flight=[4, 1], memory=45)
    assert free is not None
    assert tight is not None
    assert free.cuts == (0, 2, 4)
    assert tight.cuts == (0, 1, 4)
    assert split_model(model, 2, 1, in_flight=[4, 1], memory=25) is None


def test_more_stages_than_units() -> None:
    assert best_split(np.zeros((3, 3)), [0, 0], 3) is None


def test_many_units_take_no_time_to_speak_of() -> None:
    rng = np.random.default_rng(0)
    units = [UnitCost(f"u{i}", Linear(0, float(t)), Linear(0, 2 * float(t))) for i, t in enumerate(rng.random(400))]
    found = split_model(Model(units, 0), 16, 1)
    assert found is not None
    average = sum(3 * unit.forward(1) for unit in units) / 16
    assert average <= found.slowest <= 1.1 * average


def test_the_table_of_times_counts_both_boundaries() -> None:
    units = [UnitCost(f"u{i}", Linear(1), Linear(2), boundary_bytes=10.0 * (i + 1)) for i in range(3)]
    table = stage_times(Model(units, 99), 2, seconds_per_byte=0.1)
    assert table[1, 2] == pytest.approx(3 + 0.1 * 2 * (10 + 20))
    assert table[0, 3] == pytest.approx(9)
    assert math.isclose(table[2, 3], 3 + 0.1 * 2 * 20)
