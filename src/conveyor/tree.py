"""The one binary tree in which the parts of an update are summed, whatever the layout.

Floating-point addition is not associative, so a sum has the same bits everywhere only if it is taken in the same order
everywhere. The leaves are the groups of an update (slots that share one pass), numbered from 0. A node [start, stop) of
more than one leaf is left + right with left = [start, middle), right = [middle, stop), middle = start + (stop - start)
// 2. With 2^k lanes that are dealt even shares every lane owns whole nodes; otherwise it owns several smaller ones, its
parts.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
Node = tuple[int, int]


@functools.lru_cache(maxsize=64)
def family(leaves: int) -> dict[Node, tuple[Node, Node]]:
    """(parent, sibling) of every node but the root."""
    found: dict[Node, tuple[Node, Node]] = {}
    waiting = [(0, leaves)]
    while waiting:
        start, stop = parent = waiting.pop()
        if stop - start > 1:
            left, right = (start, start + (stop - start) // 2), (start + (stop - start) // 2, stop)
            found[left], found[right] = (parent, right), (parent, left)
            waiting += [left, right]
    return found


class TreeSum(Generic[T]):
    """Sums values in the order of the tree, in whatever order they arrive.

    From left to right or from right to left it keeps about log2(leaves) of them. `add(left, right)` gives the sum and
    may reuse the memory of either.
    """

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        self._family, self._add = family(leaves), add
        self._parts: dict[Node, T] = {}

    def push(self, node: Node, value: T) -> None:
        """Add the value of a node: a leaf, or a sum that was computed elsewhere."""
        while node in self._family:
            parent, sibling = self._family[node]
            if sibling not in self._parts:
                break
            other = self._parts.pop(sibling)
            value = self._add(other, value) if sibling < node else self._add(value, other)
            node = parent
        self._parts[node] = value

    def take(self) -> list[T]:
        """The largest sums that could be formed, left to right: one if all leaves were pushed. Resets the object."""
        values = [value for _, value in sorted(self._parts.items(), key=lambda part: part[0])]
        self._parts = {}
        return values


@dataclass(frozen=True, slots=True)
class Dealt:
    """Which groups of an update each lane computes, and how many slots a group has."""

    slots: int
    group_slots: int
    lanes: tuple[range, ...]
    """The groups of each lane; lanes that are left over have none."""

    @property
    def groups(self) -> int:
        return self.slots // self.group_slots

    def slots_of(self, lane: int) -> range:
        """The slots that `lane` computes."""
        groups = self.lanes[lane]
        return range(groups.start * self.group_slots, groups.stop * self.group_slots)

    def passes_of(self, lane: int) -> list[tuple[int, ...]]:
        """The slots of each group of `lane`."""
        size = self.group_slots
        return [tuple(range(group * size, (group + 1) * size)) for group in self.lanes[lane]]

    def parts_of(self, lane: int) -> list[Node]:
        """The largest nodes of the tree that `lane` can sum by itself."""
        sums: TreeSum[Node] = TreeSum(self.groups, lambda left, right: (left[0], right[1]))
        for group in self.lanes[lane]:
            sums.push((group, group + 1), (group, group + 1))
        return sums.take()

    def parts(self) -> list[list[Node]]:
        """The parts of every lane."""
        return [self.parts_of(lane) for lane in range(len(self.lanes))]


def total(leaves: int, nodes: Sequence[Node], values: Sequence[T], add: Callable[[T, T], T]) -> T:
    """The sum of `values` of `nodes`, which cover all leaves from left to right."""
    sums: TreeSum[T] = TreeSum(leaves, add)
    for node, value in zip(nodes, values, strict=True):
        sums.push(node, value)
    (result,) = sums.take()
    return result
