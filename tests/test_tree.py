"""The tree of sums: one order whatever the lanes."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from conveyor import tree
from conveyor.layout import deal
from conveyor.tree import TreeSum


def text_of(leaves: int) -> str:
    """The sum as a formula, by the definition."""

    def node(start: int, stop: int) -> str:
        if stop - start == 1:
            return str(start)
        middle = start + (stop - start) // 2
        return f"({node(start, middle)}+{node(middle, stop)})"

    return node(0, leaves)


def join(left: str, right: str) -> str:
    return f"({left}+{right})"


def test_small_trees() -> None:
    assert [text_of(leaves) for leaves in (1, 2, 3, 4)] == ["0", "(0+1)", "(0+(1+2))", "((0+1)+(2+3))"]


@given(st.integers(1, 70), st.integers(1, 12))
def test_every_number_of_lanes_adds_in_the_same_order(groups: int, lanes: int) -> None:
    dealt = deal(groups, 1, lanes)
    sums = []
    for lane in range(lanes):
        own: TreeSum[str] = TreeSum(groups, join)
        for group in dealt.lanes[lane]:
            own.push((group, group + 1), str(group))
        parts = own.take()
        assert len(parts) == len(dealt.parts_of(lane))
        sums += parts
    nodes = list(itertools.chain.from_iterable(dealt.parts()))
    assert tree.total(groups, nodes, sums, join) == text_of(groups)


@given(st.integers(1, 40), st.randoms())
def test_the_order_of_arrival_does_not_matter(leaves: int, random: object) -> None:
    order = list(range(leaves))
    random.shuffle(order)  # type: ignore[attr-defined]
    sums: TreeSum[str] = TreeSum(leaves, join)
    for leaf in order:
        sums.push((leaf, leaf + 1), str(leaf))
    assert sums.take() == [text_of(leaves)]
    assert sums.take() == []


@given(st.integers(1, 300), st.booleans())
def test_few_values_are_kept(leaves: int, backwards: bool) -> None:
    sums: TreeSum[int] = TreeSum(leaves, lambda left, right: left + right)
    most = 0
    for leaf in reversed(range(leaves)) if backwards else range(leaves):
        sums.push((leaf, leaf + 1), 1)
        most = max(most, len(sums._parts))
    assert sums.take() == [leaves]
    assert most <= math.ceil(math.log2(leaves)) + 1


@given(st.integers(1, 200), st.sampled_from([1, 2, 4, 8]))
def test_a_power_of_two_of_lanes_owns_one_node_each(groups: int, lanes: int) -> None:
    if groups >= lanes:
        assert [len(parts) for parts in deal(groups, 1, lanes).parts()] == [1] * lanes
