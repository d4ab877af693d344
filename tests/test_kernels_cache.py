"""Writing K and V into paged and slotted caches and reading them back, in every type and layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_inputs import DTYPES, ints, paged, poisoned, torch
from kvreplay.kernels.cache_layout import LAYOUTS, PACKED, SEPARATE, KVCache
from kvreplay.kernels.gather_kv import gather_kv, gather_kv_reference
from kvreplay.kernels.write_kv import write_kv, write_kv_reference
from kvreplay.kernels.write_slots import write_slots, write_slots_reference

FP8 = torch.float8_e4m3fn


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For comparing NaN with NaN, and fp8 at all."""
    tensor = tensor.contiguous()
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def same(found: KVCache, expected: KVCache) -> bool:
    return torch.equal(bits(found.k), bits(expected.k)) and torch.equal(bits(found.v), bits(expected.v))


def new_tokens(count: int, heads: int, head_size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V as slices of one projection's output: strided, as engines have them."""
    both = torch.randn(count, 2 * heads * head_size, generator=torch.Generator().manual_seed(count)).to(dtype)
    key, value = both.split(heads * head_size, -1)
    return key.view(count, heads, head_size), value.view(count, heads, head_size)


def some_slots(count: int, size: int, skipped: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(count)
    slots = rng.permutation(size)[:count]
    slots[rng.permutation(count)[:skipped]] = -1
    return torch.from_numpy(slots)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_write_kv(dtype, layout, head_size):
    blocks, size, heads, kind = 6, 16, 2, DTYPES[dtype]
    found, expected = (layout.allocate(blocks, size, heads, head_size, kind, "cpu") for _ in range(2))
    key, value = new_tokens(45, heads, head_size, kind)
    slots = some_slots(45, blocks * size, skipped=9)
    write_kv(key, value, slots, found)
    write_kv_reference(key, value, slots, expected)
    assert same(found, expected)
    live = slots >= 0
    assert torch.equal(found.rows(slots[live])[0], key[live])
    unwritten = torch.from_numpy(np.setdiff1d(np.arange(blocks * size), slots.numpy()))
    assert found.rows(unwritten)[1].isnan().all()


@pytest.mark.parametrize("block_size", [1, 5, 64, 256])
@pytest.mark.parametrize("count", [0, 1, 33])
def test_write_kv_block_sizes(block_size, count):
    found, expected = (PACKED.allocate(260 // block_size + 1, block_size, 1, 64, torch.bfloat16, "cpu") for _ in "ab")
    key, value = new_tokens(count, 1, 64, torch.bfloat16)
    slots = some_slots(count, found.num_blocks * block_size)
    write_kv(key, value, slots, found)
    write_kv_reference(key, value, slots, expected)
    assert same(found, expected)


def test_write_kv_skips_a_batch_of_nothing_but_padding():
    cache = SEPARATE.allocate(3, 16, 2, 64, torch.float32, "cpu")
    write_kv(*new_tokens(20, 2, 64, torch.float32), torch.full((20,), -1), cache)
    assert cache.k.isnan().all()
    assert cache.v.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_write_kv_fp8(dtype, layout):
    """Rounds to the nearest, ties to even, and saturates; the scale divides."""
    found, expected = (layout.allocate(4, 16, 2, 64, FP8, "cpu") for _ in range(2))
    key, value = new_tokens(40, 2, 64, DTYPES[dtype])
    key = key * torch.logspace(-5, 4, 40)[:, None, None].to(key.dtype)
    slots = some_slots(40, 64, skipped=3)
    write_kv(key, value, slots, found, k_scale=0.5, v_scale=4.0)
    write_kv_reference(key, value, slots, expected, k_scale=0.5, v_scale=4.0)
    assert same(found, expected)
    assert found.rows(slots[slots >= 0])[0].float().abs().max() == 448


@pytest.mark.parametrize("dtype", [*DTYPES, "fp8"])
@pytest.mark.parametrize("page_size", [1, 64])
def test_write_slots(dtype, page_size):
    kind = FP8 if dtype == "fp8" else DTYPES[dtype]
    shape = (128 + page_size, 2, 128)
    found, expected = ([SEPARATE.allocate(1, *shape, kind, "cpu").k[0] for _ in "kv"] for _ in range(2))
    key, value = new_tokens(37, 2, 128, torch.float16 if dtype == "fp8" else kind)
    slots = some_slots(37, shape[0], skipped=2)
    write_slots(key, value, slots, *found)
    write_slots_reference(key, value, slots, *expected)
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(found, expected, strict=True))


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=5),
    st.sampled_from([1, 3, 16, 64]),
    st.sampled_from(list(LAYOUTS)),
    st.sampled_from(list(DTYPES)),
)
def test_gather_kv(seq_lens, block_size, layout, dtype):
    """What was written comes back, whatever the layout of blocks."""
    case = paged(1, seq_lens, [0] * len(seq_lens), block_size=block_size, layout=LAYOUTS[layout], dtype=DTYPES[dtype])
    order = np.random.default_rng(len(seq_lens)).permutation(len(seq_lens))
    lengths = np.array(seq_lens)[order]
    starts = np.concatenate(([0], np.cumsum(lengths)))
    found = [poisoned(sum(seq_lens), 2, 64, dtype=DTYPES[dtype]) for _ in "kv"]
    expected = [x.clone() for x in found]
    arguments = (case.cache, case.step.block_table, ints(order), ints(starts))
    gather_kv(*arguments, *found, max(seq_lens))
    gather_kv_reference(*arguments, *expected, max(seq_lens))
    assert torch.equal(bits(found[0]), bits(expected[0]))
    assert torch.equal(bits(found[1]), bits(expected[1]))
    for place, request in enumerate(order.tolist()):
        begin, end = case.history[request : request + 2].tolist()
        assert torch.equal(found[0][starts[place] : starts[place + 1]], case.key[begin:end])


def test_layouts_have_the_physical_shapes_of_engines():
    assert PACKED.physical_shape(10, 16, 8, 128) == (10, 8, 16, 256)
    assert SEPARATE.physical_shape(10, 16, 8, 128) == (10, 16, 8, 128)
    physical = torch.arange(2 * 8 * 16 * 256).view(2, 8, 16, 256).float()
    cache = PACKED.view(physical)
    assert cache.k[1, 3, 5, 7] == physical[1, 5, 3, 7]
    assert cache.v[1, 3, 5, 7] == physical[1, 5, 3, 128 + 7]
    assert (cache.num_blocks, cache.block_size, cache.kv_heads, cache.head_size) == (2, 16, 8, 128)


def test_wrappers_refuse_what_kernels_cannot_take():
    cache = PACKED.allocate(2, 16, 2, 64, torch.bfloat16, "cpu")
    key, value = new_tokens(4, 2, 64, torch.bfloat16)
    slots = torch.arange(4)
    with pytest.raises(TypeError, match="cache: expected torch"):
        write_kv(key.float(), value.float(), slots, cache)
    with pytest.raises(TypeError, match=r"slots: expected torch\.int64"):
        write_kv(key, value, slots.int(), cache)
    with pytest.raises(ValueError, match=r"value: expected the shape \[4, 2, 64\], got \[3, 2, 64\]"):
        write_kv(key, value[:3], slots, cache)
    with pytest.raises(ValueError, match=r"key: expected the shape \[any, 2, 64\], got \[4, 1, 64\]"):
        write_kv(key[:, :1], value[:, :1], slots, cache)
    with pytest.raises(ValueError, match="head_size: expected one of 16, 32, 64, 128, 256, got 48"):
        PACKED.allocate(2, 16, 2, 48, torch.bfloat16, "cpu")
    with pytest.raises(ValueError, match="packed: expected one tensor, got 2"):
        PACKED.view(key, value)
