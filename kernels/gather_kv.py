"""Read the history of requests back from the paged cache into contiguous tensors, by block table."""

from __future__ import annotations

# torch and triton come with the extra `kernels`; `triton.jit` says nothing to type checkers of launches.
# pyright: reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from .cache_layout import KVCache
from .checks import expect
from .launch import ceil_div
from .write_kv import write_tile


@triton.jit
def gather_kv_kernel(
    # tensors
    k_cache,
    v_cache,
    block_table,
    rows,
    offsets,
    key,
    value,
    # strides
    table_stride,
    k_block,
    k_token,
    k_head,
    v_block,
    v_token,
    v_head,
    out_token,
    out_head,
    # meta
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    HEAD_SIZE: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr,  # noqa: N803
):
    """One program TOKENS tokens of one head of one request."""
    seq = tl.program_id(0)
    head = tl.program_id(2)
    first = tl.load(offsets + seq)
    length = tl.load(offsets + seq + 1) - first
    begin = tl.program_id(1) * TOKENS
    if begin < length:
        place = begin + tl.arange(0, TOKENS)
        inside = place < length
        row = block_table + tl.load(rows + seq).to(tl.int64) * table_stride
        block = tl.load(row + place // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)[:, None]
        offset = (place % BLOCK_SIZE)[:, None]
        dim = tl.arange(0, HEAD_SIZE)[None, :]
        mask = inside[:, None]
        k = tl.load(k_cache + block * k_block + offset * k_token + head * k_head + dim, mask=mask)
        v = tl.load(v_cache + block * v_block + offset * v_token + head * v_head + dim, mask=mask)
        target = (first + place).to(tl.int64)[:, None] * out_token + head * out_head + dim
        tl.store(key + target, k, mask=mask)
        tl.store(value + target, v, mask=mask)


def gather_kv(
    cache: KVCache, block_table: Tensor, rows: Tensor, offsets: Tensor, key: Tensor, value: Tensor, max_len: int
) -> None:
    """Fill `key` and `value` with the histories of n requests, one behind the other.

    Args:
        cache: paged K and V.
        block_table: int32 [any, width].
        rows: int32 [n], each request's row of the table.
        offsets: int32 [n + 1], where each request's tokens begin in the outputs; the last entry is their count.
        key: [offsets[n], num_kv_heads, head_size] of the cache's dtype, contiguous; every element is written.
        value: the same.
        max_len: no request has more tokens.

    Raises:
        TypeError, ValueError: tensors that do not go together.
    """
    _expect(cache, block_table, rows, offsets, key, value)
    if not len(rows) or not max_len:
        return
    tile = write_tile(cache.head_size)
    gather_kv_kernel[(len(rows), ceil_div(max_len, tile.tokens), cache.kv_heads)](
        cache.k,
        cache.v,
        block_table,
        rows,
        offsets,
        key,
        value,
        block_table.stride(0),
        *cache.strides,
        *key.stride()[:2],
        BLOCK_SIZE=cache.block_size,
        HEAD_SIZE=cache.head_size,
        TOKENS=tile.tokens,
        num_warps=tile.num_warps,
    )


def gather_kv_reference(
    cache: KVCache, block_table: Tensor, rows: Tensor, offsets: Tensor, key: Tensor, value: Tensor, max_len: int
) -> None:
    """The same in plain torch."""
    _expect(cache, block_table, rows, offsets, key, value)
    key[:], value[:] = cache.rows(history_slots(block_table, rows, offsets, cache.block_size))


def history_slots(block_table: Tensor, rows: Tensor, offsets: Tensor, block_size: int) -> Tensor:
    """The slots of all tokens of n requests, int64 [offsets[n]], in plain torch."""
    lengths = offsets.diff()
    position = torch.arange(int(offsets[-1]), device=rows.device) - offsets[:-1].repeat_interleave(lengths)
    block = block_table[rows.repeat_interleave(lengths), position // block_size].to(torch.int64)
    return block * block_size + position % block_size


def _expect(cache: KVCache, block_table: Tensor, rows: Tensor, offsets: Tensor, key: Tensor, value: Tensor) -> None:
    expect("block_table", block_table, (None, None), torch.int32, cache.k)
    expect("rows", rows, (None,), torch.int32, cache.k)
    expect("offsets", offsets, (len(rows) + 1,), torch.int32, cache.k)
    expect("key", key, (None, cache.kv_heads, cache.head_size), cache.k.dtype, cache.k)
    expect("value", value, tuple(key.shape), cache.k.dtype, cache.k)
    if not (key.is_contiguous() and value.is_contiguous()):
        raise ValueError("key, value: expected contiguous tensors")
