"""Allocators against a model of plain lists, whatever is asked of them in whatever order; and their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kvreplay.allocators.base import BlockAllocator
from kvreplay.allocators.block_pool import BlockPool
from kvreplay.allocators.block_table import BlockTable
from kvreplay.allocators.free_queue import FreeQueue
from kvreplay.allocators.prefix_map import PrefixMap
from naive_vllm import NaiveBlockPool

NODES = 63
"""Nodes of a binary tree of prefixes: node v goes on to 2v + 1 and 2v + 2."""

Allocator = Callable[[int, int], BlockAllocator]
"""Makes one from its blocks, null block included, and its prefix nodes (0: no prefix cache)."""
Model = Callable[[int], NaiveBlockPool]

ALLOCATORS: dict[str, tuple[Allocator, Model]] = {
    "block_pool": (lambda blocks, nodes: BlockPool(blocks, 16, nodes), NaiveBlockPool),
}
"""Each allocator and the plain form of what it does: an entry here puts another one under test."""


def int64(values: Any) -> np.ndarray:
    return np.asarray(values, np.int64).reshape(-1)


def path_to(node: int) -> list[int]:
    """The node and all before it, from the root."""
    path = [node]
    while path[-1]:
        path.append((path[-1] - 1) // 2)
    return path[::-1]


@dataclass
class Holder:
    """A request: its blocks, how many of them are registered, and the nodes they are registered as."""

    blocks: list[int]
    registered: int
    path: list[int]


class AllocatorMachine(RuleBasedStateMachine):
    """Requests come, grow, register what they filled and leave, and after each the books are compared."""

    def __init__(self, allocator: Allocator, model: Model) -> None:
        super().__init__()
        self._factories = allocator, model

    @initialize(num_blocks=st.integers(2, 24), caching=st.sampled_from([True, True, True, False]))
    def start(self, num_blocks: int, caching: bool) -> None:
        allocator, model = self._factories
        self.caching = caching
        self.pool = allocator(num_blocks, NODES if caching else 0)
        self.model = model(num_blocks)
        self.holders: list[Holder] = []
        self.seen = _Seen()
        self.pool.observer = self.seen
        assert self.pool.capacity == num_blocks - 1

    @rule(node=st.integers(0, NODES - 1), more=st.integers(0, 3), register=st.integers(0, 9))
    def admit(self, node: int, more: int, register: int) -> None:
        """A request for a path: what is cached of it is shared, the rest is handed out and perhaps registered."""
        path = path_to(node)
        hits = self.pool.match(int64(path)).tolist() if self.caching else []
        assert hits == self._expected_hits(path)
        idle = self.pool.idle(int64(hits))
        assert idle.tolist() == [self.model.refs[block] == 0 for block in hits]
        new = len(path) - len(hits) + more
        if new + np.count_nonzero(idle) > self.pool.free:
            return
        self.pool.touch(int64(hits), idle)
        for block in hits:
            self.model.touch(block)
        assert self.seen.pop("hit") == [hits]
        holder = Holder(hits + self._take(new), len(hits), path)
        self.holders.append(holder)
        self._register(holder, register)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), count=st.integers(0, 4))
    def grow(self, data: st.DataObject, count: int) -> None:
        """A request gets further blocks."""
        if count <= self.pool.free:
            self._any(data).blocks += self._take(count)

    @precondition(lambda self: self.holders and self.caching)
    @rule(data=st.data(), count=st.integers(1, 3))
    def register(self, data: st.DataObject, count: int) -> None:
        """A request filled blocks that it has: its path goes on, if need be to the left."""
        holder = self._any(data)
        while len(holder.path) < len(holder.blocks) and 2 * holder.path[-1] + 1 < NODES:
            holder.path.append(2 * holder.path[-1] + 1)
        self._register(holder, count)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """A request leaves."""
        holder = self._any(data)
        self.holders.remove(holder)
        before = self.pool.releases
        self.pool.release(int64(holder.blocks), holder.registered)
        self.model.release(holder.blocks[::-1])
        assert self.pool.releases > before
        freed = [block for block in holder.blocks if self.model.refs[block] == 0]
        assert sorted(block for call in self.seen.pop("released") for block in call) == sorted(freed)

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, model = self.pool, self.model
        pool.check([int64(holder.blocks) for holder in self.holders])
        assert pool.free_order().tolist() == model.free
        assert pool.free == len(model.free)
        assert pool.used == pool.capacity - len(model.free)
        assert pool.cached == sum(block in model.prefix_of for block in model.free)
        assert pool.evicted == model.evicted
        if self.caching:
            assert [pool.holds(node) for node in range(NODES)] == [node in model.holders for node in range(NODES)]
        assert not any(self.seen.calls.values()), "an observer was told of what did not happen"

    def _any(self, data: st.DataObject) -> Holder:
        return self.holders[data.draw(st.integers(0, len(self.holders) - 1), label="holder")]

    def _expected_hits(self, path: list[int]) -> list[int]:
        hits: list[int] = []
        for node in path if self.caching else []:
            block = self.model.oldest_holder(node)
            if block is None:
                break
            hits.append(block)
        return hits

    def _take(self, count: int) -> list[int]:
        lost = [(b, self.model.prefix_of[b]) for b in self.model.free[:count] if b in self.model.prefix_of]
        blocks = self.pool.take(count).tolist()
        assert blocks == self.model.take_new(count)
        assert self.seen.pop("evicted") == ([lost] if lost else [])
        return blocks

    def _register(self, holder: Holder, count: int) -> None:
        start = holder.registered
        stop = min(start + count, len(holder.path), len(holder.blocks)) if self.caching else start
        if stop > start:
            self.pool.register(int64(holder.path[start:stop]), int64(holder.blocks[start:stop]))
            for node, block in zip(holder.path[start:stop], holder.blocks[start:stop], strict=True):
                self.model.register(block, node)
            holder.registered = stop


class _Seen:
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Any]] = {"hit": [], "released": [], "evicted": [], "missed": []}

    def pop(self, name: str) -> list[Any]:
        """What was told since the last time."""
        calls, self.calls[name] = self.calls[name], []
        return calls

    def hit(self, blocks: np.ndarray) -> None:
        self.calls["hit"].append(blocks.tolist())

    def released(self, blocks: np.ndarray) -> None:
        self.calls["released"].append(blocks.tolist())

    def evicted(self, blocks: np.ndarray, nodes: np.ndarray) -> None:
        self.calls["evicted"].append(list(zip(blocks.tolist(), nodes.tolist(), strict=True)))

    def missed(self, nodes: np.ndarray) -> None:
        self.calls["missed"].append(nodes.tolist())


@pytest.mark.parametrize("name", ALLOCATORS)
def test_does_what_plain_lists_do(name: str) -> None:
    run_state_machine_as_test(lambda: AllocatorMachine(*ALLOCATORS[name]), settings=settings(stateful_step_count=40))


# ---------------------------------------------------------------------- the free queue


class QueueMachine(RuleBasedStateMachine):
    """The free queue against a list."""

    @initialize(size=st.integers(1, 12))
    def start(self, size: int) -> None:
        self.size = size
        self.queue = FreeQueue(size)
        self.list = list(range(size))

    def _outside(self) -> list[int]:
        return [block for block in range(self.size) if block not in self.list]

    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.list)))
        assert self.queue.pop(count).tolist() == self.list[:count]
        del self.list[:count]

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.list:
            blocks = data.draw(st.lists(st.sampled_from(self.list), unique=True))
            self.queue.remove(int64(blocks))
            self.list = [block for block in self.list if block not in blocks]

    @rule(data=st.data(), head=st.booleans())
    def put(self, data: st.DataObject, head: bool) -> None:
        outside = self._outside()
        blocks = data.draw(st.lists(st.sampled_from(outside), unique=True)) if outside else []
        if head:
            self.queue.prepend(int64(blocks))
            self.list[:0] = blocks
        else:
            self.queue.append(int64(blocks))
            self.list.extend(blocks)

    @invariant()
    def equal(self) -> None:
        if hasattr(self, "queue"):
            self.queue.check()
            assert self.queue.order().tolist() == self.list
            assert len(self.queue) == len(self.list)
            everywhere = np.arange(self.size)
            assert self.queue.contains(everywhere).tolist() == [block in self.list for block in range(self.size)]


def test_free_queue_does_what_a_list_does() -> None:
    run_state_machine_as_test(QueueMachine, settings=settings(stateful_step_count=60))


def test_free_queue_hands_out_across_many_holes() -> None:
    queue = FreeQueue(1000)
    queue.remove(np.arange(1, 990))
    assert queue.pop(3).tolist() == [0, 990, 991]
    queue.check()
    assert len(queue) == 8


def test_free_queue_has_room_at_either_end_for_ever() -> None:
    at_head, at_tail = FreeQueue(5), FreeQueue(5)
    for _ in range(100):
        at_head.prepend(at_head.pop(5))
        at_tail.append(at_tail.pop(2))
    assert at_head.order().tolist() == [0, 1, 2, 3, 4]
    assert at_tail.order().tolist() == [0, 1, 2, 3, 4]
    at_head.check()
    at_tail.check()


def test_free_queue_makes_room_by_itself_while_blocks_are_missing() -> None:
    queue = FreeQueue(6)
    queue.remove(int64([1, 3]))
    for _ in range(60):
        queue.append(queue.pop(1))
    for _ in range(60):
        last = queue.order()[-1:]
        queue.remove(last)
        queue.prepend(last)
    assert sorted(queue.order().tolist()) == [0, 2, 4, 5]
    queue.check()


def _count_a_hole(queue: FreeQueue) -> None:
    queue._holes += 1


def _slots(queue: FreeQueue) -> np.ndarray:
    """The array that holds the ids, which is its largest."""
    return max((value for value in vars(queue).values() if isinstance(value, np.ndarray)), key=len)


def _hold_a_block_twice(queue: FreeQueue) -> None:
    _slots(queue)[queue._head] = _slots(queue)[queue._head + 1]


def _misplace_a_block(queue: FreeQueue) -> None:
    queue._position[queue.order()[0]] += 1


def _shorten(queue: FreeQueue) -> None:
    _slots(queue)[queue._tail - 1] = -1


@pytest.mark.parametrize("damage", [_count_a_hole, _hold_a_block_twice, _misplace_a_block, _shorten])
def test_check_of_the_free_queue_finds(damage: Callable[[FreeQueue], None]) -> None:
    queue = FreeQueue(8)
    queue.remove(int64([4]))
    queue.check()
    damage(queue)
    with pytest.raises(AssertionError):
        queue.check()


# ---------------------------------------------------------------------- the prefix map


def test_prefix_map_matches_up_to_the_first_gap() -> None:
    prefixes = PrefixMap(10)
    prefixes.add(int64([1, 2, 4]), int64([11, 12, 14]))
    assert prefixes.match(int64([1, 2, 3, 4])).tolist() == [11, 12]
    assert prefixes.match(int64([3, 1])).tolist() == []
    assert prefixes.match(int64([])).tolist() == []
    assert 4 in prefixes
    assert 3 not in prefixes


def test_prefix_map_gives_the_oldest_of_equal_blocks() -> None:
    prefixes = PrefixMap(4)
    for block in (5, 7, 6):
        prefixes.add(int64([2]), int64([block]))
    assert prefixes.match(int64([2])).tolist() == [5]
    prefixes.drop(int64([2]), int64([5]))
    assert prefixes.match(int64([2])).tolist() == [7]
    prefixes.drop(int64([2]), int64([6]))
    assert prefixes.match(int64([2])).tolist() == [7]
    prefixes.drop(int64([2]), int64([7]))
    assert 2 not in prefixes


@given(st.permutations([5, 6, 7, 8]), st.permutations([5, 6, 7, 8]), st.integers(1, 4))
def test_prefix_map_drops_equal_blocks_together(added: list[int], dropped: list[int], count: int) -> None:
    prefixes = PrefixMap(3)
    for block in added:
        prefixes.add(int64([1]), int64([block]))
    prefixes.add(int64([0, 2]), int64([3, 4]))
    gone = dropped[:count]
    prefixes.drop(int64([1] * count + [0]), int64([*gone, 3]))
    left = [block for block in added if block not in gone]
    assert prefixes.match(int64([1])).tolist() == left[:1]
    assert prefixes.match(int64([2])).tolist() == [4]
    assert 0 not in prefixes


# ---------------------------------------------------------------------- planted faults


def pool_in_use() -> tuple[BlockPool, list[np.ndarray]]:
    """A pool with two holders that share blocks, a free cached block, and an equal prefix in two blocks."""
    pool = BlockPool(16, 16, 10)
    first = pool.take(4)
    pool.register(int64([0, 1, 2]), first[:3])
    second = np.concatenate((first[:2], pool.take(2)))
    pool.touch(first[:2], pool.idle(first[:2]))
    pool.register(int64([2]), second[2:3])
    third = pool.take(2)
    pool.register(int64([5, 6]), third)
    pool.release(third, 2)
    tables = [first, second]
    pool.check(tables)
    return pool, tables


def _lose_a_free_block(pool: BlockPool) -> None:
    pool._queue.pop(1)


def _miscount_free(pool: BlockPool) -> None:
    pool.free -= 1


def _miscount_cached(pool: BlockPool) -> None:
    pool.cached += 1


def _forget_a_sharer(pool: BlockPool) -> None:
    pool._sharers[pool.match(int64([0]))] -= 1


def _share_a_free_block(pool: BlockPool) -> None:
    pool._sharers[pool.free_order()[0]] += 1


def _free_a_block_in_use(pool: BlockPool) -> None:
    pool._queue.append(pool.match(int64([0])))
    pool.free += 1
    pool.cached += 1


def _name_another_block(pool: BlockPool) -> None:
    pool._prefixes._first[0] = 9


def _forget_a_cached_block(pool: BlockPool) -> None:
    pool._prefixes._first[5] = 0


def _leave_an_empty_list(pool: BlockPool) -> None:
    pool._prefixes._duplicates[7] = []


def _forget_a_mark(pool: BlockPool) -> None:
    pool._prefixes._several[2] = False


def _rename_a_block(pool: BlockPool) -> None:
    pool._node[pool.match(int64([1]))] = 8


def _hand_out_the_null_block(pool: BlockPool) -> None:
    pool._node[0] = 3


FAULTS = (
    _lose_a_free_block,
    _miscount_free,
    _miscount_cached,
    _forget_a_sharer,
    _share_a_free_block,
    _free_a_block_in_use,
    _name_another_block,
    _forget_a_cached_block,
    _leave_an_empty_list,
    _forget_a_mark,
    _rename_a_block,
    _hand_out_the_null_block,
)


@pytest.mark.parametrize("damage", FAULTS)
def test_check_of_the_block_pool_finds(damage: Callable[[BlockPool], None]) -> None:
    pool, tables = pool_in_use()
    damage(pool)
    with pytest.raises(AssertionError):
        pool.check(tables)


def test_check_of_the_block_pool_finds_tables_that_are_not_theirs() -> None:
    pool, tables = pool_in_use()
    with pytest.raises(AssertionError, match="use counts"):
        pool.check([*tables, tables[0][:1]])
    with pytest.raises(AssertionError, match="lost or held"):
        pool.check(tables[:1])


# ---------------------------------------------------------------------- the block table


def test_block_table_reuses_the_row_given_back_last() -> None:
    table = BlockTable(3, 10)
    rows = [table.claim() for _ in range(3)]
    assert rows == [0, 10, 20]
    table.give_back(rows[0])
    table.give_back(rows[2])
    assert (table.claim(), table.claim()) == (20, 0)
    with pytest.raises(IndexError):
        table.claim()
