"""Decode attention by block table: one query a request, grouped-query, split over the KV length.

Two launches, as in flash-decoding (Dao et al., 2023): programs attend to parts of the KV length, each leaving its
normalised output and the logarithm of its sum of exponentials; a second kernel weighs the parts. So one long context
fills the card as many short ones do. The softmax is the online one (Milakov & Gimelshein, 2018), in powers of two.
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
from .launch import Tile, ceil_div, next_power_of_2, processors, tokens_at_a_time
from .metadata import StepMetadata
from .numerics import dot, narrow

_PROGRAMS_PER_PROCESSOR = 4
_LEAST_SPLIT_TOKENS = 256
"""A part shorter than this costs more to reduce than it saves."""
_MOST_SPLITS = 128


@triton.jit
def decode_kernel(
    # tensors
    query,
    k_cache,
    v_cache,
    block_table,
    rows,
    seq_lens,
    part_out,
    part_lse,
    # sizes
    group,
    splits,
    scale,
    # strides
    query_seq,
    query_head,
    table_stride,
    k_block,
    k_token,
    k_head,
    v_block,
    v_token,
    v_head,
    part_seq,
    part_head,
    # meta
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    HEAD_SIZE: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr,  # noqa: N803
):
    """One program ROWS query heads of one KV head over one part of one request's tokens.

    `scale` includes log2(e). Matrix units take 16 rows at least, hence a row a query head, some of them idle.
    """
    seq = tl.program_id(0)
    tiles = tl.cdiv(group, ROWS)
    kv_head = tl.program_id(1) // tiles
    member = tl.program_id(1) % tiles * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    used = member < group
    head = kv_head * group + member
    dim = tl.arange(0, HEAD_SIZE)

    length = tl.load(seq_lens + seq)
    share = tl.cdiv(tl.cdiv(length, splits), TOKENS) * TOKENS
    begin = split * share
    end = tl.minimum(begin + share, length)

    q = tl.load(
        query + seq.to(tl.int64) * query_seq + head[:, None] * query_head + dim[None, :], mask=used[:, None], other=0.0
    )
    row = block_table + tl.load(rows + seq).to(tl.int64) * table_stride
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, HEAD_SIZE), tl.float32)
    for first in range(begin, end, TOKENS):
        place = first + tl.arange(0, TOKENS)
        inside = place < end
        block = tl.load(row + place // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        offset = place % BLOCK_SIZE
        k = tl.load(
            k_cache + (block * k_block + offset * k_token)[None, :] + kv_head * k_head + dim[:, None],
            mask=inside[None, :],
            other=0.0,
        )
        scores = dot(q, k) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weight = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        v = tl.load(
            v_cache + (block * v_block + offset * v_token)[:, None] + kv_head * v_head + dim[None, :],
            mask=inside[:, None],
            other=0.0,
        )
        acc = acc * shrink[:, None] + dot(narrow(weight, v.dtype), v)
        total = total * shrink + tl.sum(weight, 1)
        top = new_top

    # A part without tokens has -inf for its logarithm, and so no weight; its output is written all the same.
    some = total > 0
    safe = tl.where(some, total, 1.0)
    lse = tl.where(some, top + tl.log2(safe), float("-inf"))
    place = seq.to(tl.int64) * part_seq + head * part_head + split
    tl.store(part_lse + place, lse, mask=used)
    tl.store(part_out + place[:, None] * HEAD_SIZE + dim[None, :], acc / safe[:, None], mask=used[:, None])


@triton.jit
def reduce_kernel(
    # tensors
    part_out,
    part_lse,
    out,
    # sizes
    splits,
    # strides
    part_seq,
    part_head,
    out_seq,
    out_head,
    # meta
    HEAD_SIZE: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    """One program one query head of one request; SPLITS is a power of two, at least `splits`."""
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, HEAD_SIZE)
    part = tl.arange(0, SPLITS)
    place = seq * part_seq + head * part_head
    lse = tl.load(part_lse + place + part, mask=part < splits, other=float("-inf"))
    top = tl.max(lse, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(lse - top), 0)
    acc = tl.zeros((HEAD_SIZE,), tl.float32)
    for split in range(splits):
        weight = tl.exp2(tl.load(part_lse + place + split) - top)
        acc += weight * tl.load(part_out + (place + split) * HEAD_SIZE + dim)
    acc = acc / tl.where(total > 0, total, 1.0)
    tl.store(out + seq * out_seq + head * out_head + dim, narrow(acc, out.dtype.element_ty))


def decode_tile(head_size: int, group: int, element_bytes: int) -> Tile:
    """What one program takes: 16 rows at least, as matrix units do, and at most 32 KiB of K and of V at a time."""
    if element_bytes == 4:
        # No matrix units to feed: operands live in registers, which takes small tiles and many threads.
        return Tile(16, tokens_at_a_time(head_size, 32), num_warps=8, num_stages=1)
    tokens = tokens_at_a_time(head_size, 64 if head_size <= 128 else 32)
    rows = min(max(next_power_of_2(group), 16), 64)
    return Tile(rows, tokens, num_warps=4, num_stages=2)


def choose_splits(num_seqs: int, programs: int, max_seq_len: int, device: torch.device) -> int:
    """Parts a request's tokens are split into: enough programs for the card, none too short.

    Args:
        num_seqs: requests.
        programs: a request has without splitting.
        max_seq_len: tokens of the longest request.
        device: whose multiprocessors are to be filled.
    """
    wanted = ceil_div(processors(device) * _PROGRAMS_PER_PROCESSOR, max(num_seqs * programs, 1))
    return max(1, min(wanted, ceil_div(max_seq_len, _LEAST_SPLIT_TOKENS), _MOST_SPLITS))


def paged_decode(
    query: Tensor, cache: KVCache, step: StepMetadata, out: Tensor, scale: float, splits: int | None = None
) -> None:
    """Attend with one query a request to all its tokens.

    Args:
        query: [num_reqs, query_heads, head_size], fp32, fp16 or bf16; 1 to 128 query heads, a multiple of the KV heads.
        cache: paged K and V of the same dtype, those of the step written.
        step: `seq_lens`, `block_table` and `rows` are used; a request of length 0 (padding) gets zeros.
        out: as `query`; every element is written.
        scale: of the scores, usually `head_size ** -0.5`.
        splits: parts of the KV length; None chooses.

    Raises:
        TypeError, ValueError: tensors that do not go together.
    """
    _expect(query, cache, step, out)
    num_seqs, heads, head_size = query.shape
    if not num_seqs:
        return
    group = heads // cache.kv_heads
    tile = decode_tile(head_size, group, query.element_size())
    programs = cache.kv_heads * ceil_div(group, tile.rows)
    splits = splits or choose_splits(num_seqs, programs, step.max_seq_len, query.device)
    part_out = torch.empty(num_seqs, heads, splits, head_size, dtype=torch.float32, device=query.device)
    part_lse = torch.empty(num_seqs, heads, splits, dtype=torch.float32, device=query.device)
    part_strides = part_lse.stride()[:2]
    decode_kernel[(num_seqs, programs, splits)](
        query,
        cache.k,
        cache.v,
        step.block_table,
        step.rows,
        step.seq_lens,
        part_out,
        part_lse,
        group,
        splits,
        scale * math.log2(math.e),
        *query.stride()[:2],
        step.block_table.stride(0),
        *cache.strides,
        *part_strides,
        BLOCK_SIZE=cache.block_size,
        HEAD_SIZE=head_size,
        ROWS=tile.rows,
        TOKENS=tile.tokens,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    reduce_kernel[(num_seqs, heads)](
        part_out,
        part_lse,
        out,
        splits,
        *part_strides,
        *out.stride()[:2],
        HEAD_SIZE=head_size,
        SPLITS=next_power_of_2(splits),
        num_warps=1,
    )


def paged_decode_reference(
    query: Tensor, cache: KVCache, step: StepMetadata, out: Tensor, scale: float, splits: int | None = None
) -> None:
    """The same in plain torch, computed in float64."""
    from .attention import attention_reference

    _expect(query, cache, step, out)
    out[:] = attention_reference(query, cache, step, scale)


def _expect(query: Tensor, cache: KVCache, step: StepMetadata, out: Tensor) -> None:
    expect("query", query, (step.num_reqs, None, cache.head_size), FLOAT_TYPES, cache.k)
    expect("cache", cache.k, (None,) * 4, query.dtype)
    expect("out", out, tuple(query.shape), query.dtype, cache.k)
    expect("step.seq_lens", step.seq_lens, (step.num_reqs,), torch.int32, cache.k)
    expect("step.rows", step.rows, (step.num_reqs,), torch.int32, cache.k)
    expect("step.block_table", step.block_table, (None, None), torch.int32, cache.k)
    expect_heads(query.shape[1], cache.kv_heads)
    expect_block_size(cache.block_size)
