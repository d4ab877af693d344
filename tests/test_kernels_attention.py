"""Paged attention against float64, with the error of torch's own attention in the same precision as the budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_inputs import DTYPES, Paged, ints, paged, poisoned, torch
from kvreplay.kernels.attention import (
    attention_reference,
    attention_same_precision,
    relative_error,
    within_budget,
)
from kvreplay.kernels.cache_layout import LAYOUTS, PACKED, SEPARATE
from kvreplay.kernels.paged_decode import choose_splits, paged_decode, paged_decode_reference
from kvreplay.kernels.paged_prefill import paged_prefill, paged_prefill_reference
from kvreplay.kernels.slot_decode import slot_decode, slot_decode_reference

SCALE = 0.11


def check(case: Paged, out: torch.Tensor) -> None:
    exact = attention_reference(case.query, case.cache, case.step, SCALE)
    same = attention_same_precision(case.query, case.cache, case.step, SCALE)
    error, budget = relative_error(out, exact), relative_error(same, exact)
    assert within_budget(error, budget, out.dtype), f"off by {error:.3g}, torch by {budget:.3g}"


def decode(case: Paged, splits: int | None = None) -> torch.Tensor:
    out = torch.full_like(case.query, torch.nan)
    paged_decode(case.query, case.cache, case.step, out, SCALE, splits)
    return out


def prefill(case: Paged) -> torch.Tensor:
    out = torch.full_like(case.query, torch.nan)
    paged_prefill(case.query, case.cache, case.step, out, SCALE)
    return out


def ones(lens):
    return [1] * len(lens)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_decode(dtype, layout, head_size):
    lens = [1, 70, 16, 129]
    case = paged(2, lens, ones(lens), block_size=16, layout=layout, dtype=DTYPES[dtype], head_size=head_size)
    check(case, decode(case, 2))


@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (8, 1), (1, 7), (2, 16), (1, 128), (8, 16)])
def test_decode_heads(kv_heads, group):
    lens = [17]
    case = paged(
        3, lens, ones(lens), block_size=16, layout=PACKED, dtype=torch.bfloat16, kv_heads=kv_heads, group=group
    )
    check(case, decode(case))


@pytest.mark.parametrize("block_size", [1, 3, 64, 256])
@pytest.mark.parametrize("splits", [1, 3, 8, None])
def test_decode_splits_and_block_sizes(block_size, splits):
    """More splits than there are tiles: some parts have no token."""
    lens = [300, 1, 64]
    case = paged(4, lens, ones(lens), block_size=block_size, layout=SEPARATE, dtype=torch.float32, kv_heads=1)
    check(case, decode(case, splits))


def test_decode_of_padded_rows_gives_zeros():
    """Requests behind the batch's end have length 0 and a row of null blocks."""
    lens = [20, 0, 0]
    case = paged(5, lens, ones(lens), block_size=16, layout=PACKED, dtype=torch.bfloat16)
    out = decode(case, 3)
    assert not out[1:].any()
    check(case, out)


def test_decode_of_no_request():
    case = paged(5, [], [], block_size=16, layout=PACKED, dtype=torch.bfloat16)
    assert decode(case).shape == (0, 4, 64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_prefill(dtype, layout, head_size):
    seq, chunk = [70, 1, 40, 129], [70, 1, 17, 2]
    case = paged(6, seq, chunk, block_size=16, layout=layout, dtype=DTYPES[dtype], head_size=head_size, kv_heads=1)
    check(case, prefill(case))


@pytest.mark.parametrize("block_size", [1, 3, 64, 256])
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (2, 3)])
def test_prefill_block_sizes_and_heads(block_size, kv_heads, group):
    case = paged(
        7,
        [65, 0, 200],
        [65, 0, 3],
        block_size=block_size,
        layout=SEPARATE,
        dtype=torch.bfloat16,
        kv_heads=kv_heads,
        group=group,
    )
    check(case, prefill(case))


@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 80)), min_size=1, max_size=4),
    st.sampled_from([1, 7, 16, 32]),
    st.sampled_from(list(LAYOUTS)),
    st.sampled_from(list(DTYPES)),
    st.integers(0, 3),
)
def test_prefill_and_decode_of_any_layout(chunks, block_size, layout, dtype, seed):
    shape = {"block_size": block_size, "layout": LAYOUTS[layout], "dtype": DTYPES[dtype], "kv_heads": 1}
    seq = [before + new for before, new in chunks]
    case = paged(seed, seq, [new for _, new in chunks], **shape)
    check(case, prefill(case))
    case = paged(seed, seq, ones(seq), **shape)
    out = decode(case)
    check(case, out)
    # A chunk of one token is a decode.
    assert torch.allclose(out.float(), prefill(case).float(), atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slot_decode(dtype):
    """`req_to_token` is not in batch order: rows are found by index."""
    lens = [3, 60, 128]
    case = paged(8, lens, ones(lens), block_size=1, layout=SEPARATE, dtype=DTYPES[dtype], head_size=128)
    req_to_token = torch.zeros(7, 140, dtype=torch.int32)
    rows = ints([6, 0, 3])
    req_to_token[rows, : case.step.block_table.shape[1]] = case.step.block_table
    step = replace(case.step, block_table=req_to_token, rows=rows)
    k_buffer, v_buffer = case.cache.k[:, 0], case.cache.v[:, 0]
    out, expected = (torch.full_like(case.query, torch.nan) for _ in range(2))
    slot_decode(case.query, k_buffer, v_buffer, step, out, SCALE)
    slot_decode_reference(case.query, k_buffer, v_buffer, step, expected, SCALE)
    check(case, out)
    assert torch.allclose(out.float(), expected.float(), atol=0.02, rtol=0.02)


def test_references_fill_the_output():
    lens = [9, 30]
    case = paged(9, lens, [2, 5], block_size=4, layout=PACKED, dtype=torch.float32)
    out = torch.full_like(case.query, torch.nan)
    paged_prefill_reference(case.query, case.cache, case.step, out, SCALE)
    check(case, out)
    case = paged(9, lens, ones(lens), block_size=4, layout=PACKED, dtype=torch.float32)
    out = torch.full_like(case.query, torch.nan)
    paged_decode_reference(case.query, case.cache, case.step, out, SCALE)
    check(case, out)


def test_splits_fill_the_card_and_no_more():
    cpu = torch.device("cpu")
    assert choose_splits(1, 1, 100, cpu) == 1, "a short context is not split"
    assert choose_splits(1, 1, 100_000, cpu) == 4, "one long context makes as many programs as are wanted"
    assert choose_splits(1000, 8, 100_000, cpu) == 1, "many requests fill the card as they are"


def test_nan_never_passes_the_budget():
    assert not within_budget(float("nan"), 1.0, torch.float32)
    assert not within_budget(1e-3, 4e-4, torch.float32)
    assert within_budget(1e-3, 6e-4, torch.float32)


def test_wrappers_refuse_what_kernels_cannot_take():
    case = paged(2, [5], [1], block_size=16, layout=PACKED, dtype=torch.bfloat16)
    out = torch.empty_like(case.query)
    with pytest.raises(ValueError, match="query heads: expected a multiple of the 2 KV heads"):
        paged_decode(case.query[:, :3], case.cache, case.step, out[:, :3], SCALE)
    with pytest.raises(TypeError, match=r"cache: expected torch\.float32"):
        paged_decode(case.query.float(), case.cache, case.step, out.float(), SCALE)
    with pytest.raises(ValueError, match=r"out: expected the shape"):
        paged_prefill(case.query, case.cache, case.step, poisoned(1, 2, 64, dtype=torch.bfloat16), SCALE)
    with pytest.raises(ValueError, match=r"step\.rows: expected the shape \[1\]"):
        paged_decode(case.query, case.cache, replace(case.step, rows=ints(np.arange(2))), out, SCALE)
