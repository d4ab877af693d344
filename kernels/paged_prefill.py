"""Attention of prefill chunks against cached history, by block table: causal, requests of any length in one launch.

A request's chunk is its last `query_len` tokens; their K and V are in the cache already, so that history and chunk are
read alike. The loop over the KV length runs unmasked as far as every row sees every token, then masked to the end.
"""

from __future__ import annotations

# torch and triton come with the extra `kernels`; `triton.jit` says nothing to type checkers of launches.
# pyright: reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .cache_layout import KVCache
from .checks import FLOAT_TYPES, expect, expect_block_size, expect_heads
from .launch import Tile, ceil_div, tokens_at_a_time
from .metadata import StepMetadata
from .numerics import dot, narrow


@triton.jit
def _attend(
    q, top, total, acc, first, length, position, k_base, v_base, row, scale,
    k_block, k_token, v_block, v_token,
    BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, TOKENS: tl.constexpr, MASKED: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """One step of the online softmax over TOKENS tokens from `first`."""
    dim = tl.arange(0, HEAD_SIZE)
    place = first + tl.arange(0, TOKENS)
    inside = place < length
    block = tl.load(row + place // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    offset = place % BLOCK_SIZE
    k = tl.load(k_base + (block * k_block + offset * k_token)[None, :] + dim[:, None], mask=inside[None, :], other=0.0)
    scores = dot(q, k) * scale
    if MASKED:
        scores = tl.where(place[None, :] <= position[:, None], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weight = tl.exp2(scores - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    v = tl.load(v_base + (block * v_block + offset * v_token)[:, None] + dim[None, :], mask=inside[:, None], other=0.0)
    acc = acc * shrink[:, None] + dot(narrow(weight, v.dtype), v)
    return new_top, total * shrink + tl.sum(weight, 1), acc


@triton.jit
def prefill_kernel(
    # tensors
    query,
    k_cache,
    v_cache,
    block_table,
    rows,
    seq_lens,
    query_start_loc,
    out,
    # sizes
    group,
    scale,
    # strides
    query_token,
    query_head,
    out_token,
    out_head,
    table_stride,
    k_block,
    k_token,
    k_head,
    v_block,
    v_token,
    v_head,
    # meta
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    HEAD_SIZE: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr,  # noqa: N803
):
    """One program ROWS query tokens of one head of one request. `scale` includes log2(e)."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(query_start_loc + seq)
    count = tl.load(query_start_loc + seq + 1) - start
    # The last rows see the most tokens: they begin first, so that the longest programs are not the last to run.
    tile = tl.num_programs(2) - 1 - tl.program_id(2)
    if tile * ROWS >= count:
        return
    kv_head = head // group
    dim = tl.arange(0, HEAD_SIZE)
    place = tile * ROWS + tl.arange(0, ROWS)
    used = (place < count)[:, None]
    token = (start + place).to(tl.int64)[:, None]
    q = tl.load(query + token * query_token + head * query_head + dim[None, :], mask=used, other=0.0)

    length = tl.load(seq_lens + seq)
    before = length - count
    position = before + place
    row = block_table + tl.load(rows + seq).to(tl.int64) * table_stride
    k_base = k_cache + kv_head * k_head
    v_base = v_cache + kv_head * v_head
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, HEAD_SIZE), tl.float32)
    whole = (before + tile * ROWS + 1) // TOKENS * TOKENS
    for first in range(0, whole, TOKENS):
        top, total, acc = _attend(
            q, top, total, acc, first, length, position, k_base, v_base, row, scale,
            k_block, k_token, v_block, v_token, BLOCK_SIZE, HEAD_SIZE, TOKENS, False,
        )  # fmt: skip
    end = tl.minimum(before + (tile + 1) * ROWS, length)
    for first in range(whole, end, TOKENS):
        top, total, acc = _attend(
            q, top, total, acc, first, length, position, k_base, v_base, row, scale,
            k_block, k_token, v_block, v_token, BLOCK_SIZE, HEAD_SIZE, TOKENS, True,
        )  # fmt: skip
    # Token 0 is seen by every row, so the total is above zero.
    tl.store(
        out + token * out_token + head * out_head + dim[None, :],
        narrow(acc / total[:, None], out.dtype.element_ty),
        mask=used,
    )


def prefill_tile(head_size: int, element_bytes: int) -> Tile:
    """What one program takes: chosen to spill nothing where the element type and block size are engines' defaults.

    In fp32 there are no matrix units to feed, and operands live in registers: small tiles, many threads.
    """
    if head_size < 64:
        return Tile(rows=32, tokens=tokens_at_a_time(head_size, 64), num_warps=4, num_stages=1)
    if element_bytes == 4:
        return Tile(rows=16, tokens=32 if head_size <= 128 else 16, num_warps=8, num_stages=1)
    if head_size <= 128:
        return Tile(rows=64, tokens=64, num_warps=4, num_stages=2)
    return Tile(rows=64, tokens=32, num_warps=8, num_stages=1)


def paged_prefill(query: Tensor, cache: KVCache, step: StepMetadata, out: Tensor, scale: float) -> None:
    """Attend with each request's scheduled tokens to its tokens up to themselves.

    Args:
        query: [num_tokens, query_heads, head_size], fp32, fp16 or bf16; 1 to 128 heads, a multiple of the KV heads.
        cache: paged K and V of the same dtype, those of the step written.
        step: `query_start_loc`, `seq_lens`, `block_table` and `rows` are used.
        out: as `query`; rows of scheduled tokens are written.
        scale: of the scores, usually `head_size ** -0.5`.

    Raises:
        TypeError, ValueError: tensors that do not go together.
    """
    _expect(query, cache, step, out)
    heads, head_size = query.shape[1:]
    if not step.num_tokens:
        return
    tile = prefill_tile(head_size, query.element_size())
    prefill_kernel[(step.num_reqs, heads, ceil_div(step.max_query_len, tile.rows))](
        query,
        cache.k,
        cache.v,
        step.block_table,
        step.rows,
        step.seq_lens,
        step.query_start_loc,
        out,
        heads // cache.kv_heads,
        scale * math.log2(math.e),
        *query.stride()[:2],
        *out.stride()[:2],
        step.block_table.stride(0),
        *cache.strides,
        BLOCK_SIZE=cache.block_size,
        HEAD_SIZE=head_size,
        ROWS=tile.rows,
        TOKENS=tile.tokens,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def paged_prefill_reference(query: Tensor, cache: KVCache, step: StepMetadata, out: Tensor, scale: float) -> None:
    """The same in plain torch, computed in float64."""
    from .attention import attention_reference

    _expect(query, cache, step, out)
    out[: step.num_tokens] = attention_reference(query, cache, step, scale)[: step.num_tokens]


def _expect(query: Tensor, cache: KVCache, step: StepMetadata, out: Tensor) -> None:
    expect("query", query, (None, None, cache.head_size), FLOAT_TYPES, cache.k)
    expect("cache", cache.k, (None,) * 4, query.dtype)
    expect("out", out, tuple(query.shape), query.dtype, cache.k)
    expect("step.seq_lens", step.seq_lens, (step.num_reqs,), torch.int32, cache.k)
    expect("step.query_start_loc", step.query_start_loc, (step.num_reqs + 1,), torch.int32, cache.k)
    expect("step.rows", step.rows, (step.num_reqs,), torch.int32, cache.k)
    expect("step.block_table", step.block_table, (None, None), torch.int32, cache.k)
    expect_heads(query.shape[1], cache.kv_heads)
    expect_block_size(cache.block_size)
    if len(query) < step.num_tokens:
        raise ValueError(f"query: {len(query)} rows, the step has {step.num_tokens} tokens")
