"""Kernels on tables of ids against their references: every element of every output, poisoned before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_inputs import ints, offsets, poisoned, table_of, torch
from kvreplay.kernels.block_table import (
    RowWrites,
    append_rows,
    append_rows_reference,
    gather_rows,
    gather_rows_reference,
)
from kvreplay.kernels.page_alloc import alloc_decode, alloc_decode_reference, alloc_extend, alloc_extend_reference
from kvreplay.kernels.req_to_token import write_req_to_token, write_req_to_token_reference
from kvreplay.kernels.slot_mapping import ContextParallel, slot_mapping, slot_mapping_reference

few = settings(max_examples=12, deadline=None)


def writes(counts: list[int], starts: list[int], rows: list[int], dtype: torch.dtype = torch.int32) -> RowWrites:
    return RowWrites(ints(rows), ints(starts), offsets(counts), ints(np.arange(sum(counts)) + 100, dtype))


@pytest.mark.parametrize(
    ("counts", "starts", "rows"),
    [
        ([], [], []),
        ([0], [3], [1]),
        ([1], [0], [0]),
        ([5, 0, 1, 2], [0, 7, 39, 38], [3, 0, 2, 1]),
        ([40, 3], [0, 37], [1, 0]),
        ([3, 2], [0, 3], [2, 2]),
        ([1500], [11], [1]),
    ],
)
def test_append_rows(counts, starts, rows):
    width = 1600 if counts == [1500] else 40
    found, expected = poisoned(4, width), poisoned(4, width)
    append_rows(found, writes(counts, starts, rows))
    append_rows_reference(expected, writes(counts, starts, rows))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_req_to_token_takes_slots_as_the_allocator_gives_them(dtype):
    given_ = writes([7, 1, 0, 30], [0, 9, 2, 3], [0, 3, 1, 2], dtype)
    found, expected = poisoned(5, 50), poisoned(5, 50)
    write_req_to_token(found, *given_)
    write_req_to_token_reference(expected, *given_)
    assert torch.equal(found, expected)
    assert found[2, 3:33].tolist() == list(range(108, 138))


@pytest.mark.parametrize("index", [[], [2], [4, 0, 3], [3, 1, 0, 2, 4, 5]])
@pytest.mark.parametrize("width", [1, 40, 1025])
def test_gather_rows_zeroes_what_lies_behind(index, width):
    table = ints(np.arange(6 * width).reshape(6, width) + 1)
    counts = ints([0, 1, min(5, width), width, width // 2, 1])
    found, expected = poisoned(6, width), poisoned(6, width)
    gather_rows(table, ints(index), counts, found)
    gather_rows_reference(table, ints(index), counts, expected)
    assert torch.equal(found, expected)
    assert not found[len(index) :].any()
    if index == [4, 0, 3]:
        assert torch.equal(found[2], table[3])
        assert not found[1].any()


def map_slots(function, lengths, starts, block_size, capacity, cp=None):
    rng = np.random.default_rng(3)
    cp = cp or ContextParallel()
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    table = table_of(rng, ends, block_size * cp.size)
    position = np.concatenate([np.arange(0), *map(np.arange, starts, ends)])
    slots = poisoned(capacity, dtype=torch.int64)
    function(offsets(lengths), ints(position, torch.int64), table, slots, block_size, cp)
    return slots, table, position


@pytest.mark.parametrize("block_size", [1, 7, 16, 256])
@pytest.mark.parametrize(
    ("lengths", "starts", "capacity"),
    [
        ([], [], 16),
        ([1], [0], 1),
        ([0, 3, 0], [5, 16, 9], 8),
        ([1, 1, 1], [15, 16, 255], 64),
        ([20, 1, 33], [0, 100, 15], 54),
        ([1100], [30], 2100),
    ],
)
def test_slot_mapping(lengths, starts, capacity, block_size):
    found, table, position = map_slots(slot_mapping, lengths, starts, block_size, capacity)
    expected = map_slots(slot_mapping_reference, lengths, starts, block_size, capacity)[0]
    assert torch.equal(found, expected)
    assert (found[sum(lengths) :] == -1).all()
    row = np.arange(len(lengths)).repeat(lengths)
    by_formula = table.numpy()[row, position // block_size] * block_size + position % block_size
    assert found[: sum(lengths)].tolist() == by_formula.tolist()


@few
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 200)), max_size=6),
    st.sampled_from([1, 4, 16, 48]),
    st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 4), (3, 2)]),
    st.data(),
)
def test_slot_mapping_with_context_parallelism(chunks, block_size, dealt, data):
    size, interleave = dealt
    interleave = interleave if block_size % interleave == 0 else 1
    lengths, starts = [length for length, _ in chunks], [start for _, start in chunks]
    capacity = sum(lengths) + data.draw(st.integers(0, 5))
    seen = []
    for rank in range(size):
        cp = ContextParallel(size, rank, interleave)
        found, _, _ = map_slots(slot_mapping, lengths, starts, block_size, capacity, cp)
        assert torch.equal(found, map_slots(slot_mapping_reference, lengths, starts, block_size, capacity, cp)[0])
        seen.append(found[: sum(lengths)].numpy() >= 0)
        slots = found[found >= 0].tolist()
        assert len(set(slots)) == len(slots), "two tokens in one slot of a rank"
    # Every token has a slot on exactly one rank.
    assert (np.sum(seen, axis=0) == 1).all() if lengths else True


def page_batch(chunks, page_size):
    """prefix and full lengths, last slots and free pages of a batch; pages are shuffled."""
    rng = np.random.default_rng(5)
    prefix = np.array([before for before, _ in chunks], np.int64)
    seq = prefix + np.array([more for _, more in chunks], np.int64)
    held = rng.permutation(len(chunks)) + 1
    last = np.where(prefix > 0, held * page_size + (prefix - 1) % page_size, -1)
    free = rng.permutation(int((seq // page_size + 1).sum()) + 1) + len(chunks) + 1
    return tuple(torch.from_numpy(x.astype(np.int64)) for x in (prefix, seq, last, free))


@few
@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 70)), max_size=8), st.sampled_from([1, 2, 16, 64, 256]))
def test_alloc_extend(chunks, page_size):
    prefix, seq, last, free = page_batch(chunks, page_size)
    count = int((seq - prefix).sum())
    found, expected = poisoned(count, dtype=torch.int64), poisoned(count, dtype=torch.int64)
    alloc_extend(prefix, seq, last, free, found, page_size)
    alloc_extend_reference(prefix, seq, last, free, expected, page_size)
    assert torch.equal(found, expected)
    assert found.tolist() == extend_one_by_one(prefix, seq, last, free, page_size)


def extend_one_by_one(prefix, seq, last, free, page_size):
    """Token by token, as one would explain it."""
    pages, slots = iter(free.tolist()), []
    for before, after, slot in zip(prefix.tolist(), seq.tolist(), last.tolist(), strict=True):
        for position in range(before, after):
            slot = next(pages) * page_size if position % page_size == 0 else slot + 1
            slots.append(slot)
    return slots


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_alloc_decode(count, page_size):
    lengths = np.random.default_rng(count).integers(1, 200, count)
    prefix, seq, last, free = page_batch([(length, 1) for length in lengths], page_size)
    found, expected = poisoned(count, dtype=torch.int64), poisoned(count, dtype=torch.int64)
    alloc_decode(seq, last, free, found, page_size)
    alloc_decode_reference(seq, last, free, expected, page_size)
    assert torch.equal(found, expected)
    assert found.tolist() == extend_one_by_one(prefix, seq, last, free, page_size)


def test_wrappers_refuse_what_kernels_cannot_take():
    table = poisoned(4, 8)
    good = writes([2], [0], [1])
    with pytest.raises(TypeError, match=r"table: expected torch\.int32, got torch\.int64"):
        append_rows(table.long(), good)
    with pytest.raises(ValueError, match=r"writes\.starts: expected the shape \[1\], got \[2\]"):
        append_rows(table, good._replace(starts=ints([0, 1])))
    with pytest.raises(ValueError, match="last dimension must be contiguous"):
        append_rows(poisoned(8, 4).t(), good)
    with pytest.raises(ValueError, match="5 requests do not fit the 4 rows"):
        gather_rows(table, ints([0, 1, 2, 3, 0]), ints([1] * 4), poisoned(4, 8))
    slots = poisoned(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="block_size: expected 1 to 256, got 512"):
        slot_mapping(offsets([1]), ints([0], torch.int64), table, slots, 512)
    with pytest.raises(ValueError, match="5 requests, block_table has 4 rows"):
        slot_mapping(offsets([1] * 5), ints(range(5), torch.int64), table, slots, 16)
    with pytest.raises(ValueError, match="cp: expected a rank below the size"):
        slot_mapping(offsets([1]), ints([0], torch.int64), table, slots, 16, ContextParallel(2, 2))
