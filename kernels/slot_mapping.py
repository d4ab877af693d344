"""Slot mapping: where in the KV cache each token of a step goes.

`slot = block_table[req, pos // block_size] * block_size + pos % block_size`, as in vLLM 0.32.0. Under context
parallelism a rank holds its share of every block: entries of the table stand for virtual blocks of
`block_size * cp_size` tokens, dealt to the ranks in turns of `interleave` tokens, and tokens of other ranks have no
slot here.
"""

from __future__ import annotations

# torch and triton come with the extra `kernels`; `triton.jit` says nothing to type checkers of launches.
# pyright: reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .checks import expect, expect_block_size

PAD_SLOT = -1
"""Stands for no slot: writers skip it."""
_BLOCK = 1024


class ContextParallel(NamedTuple):
    """How tokens are dealt to ranks."""

    size: int = 1
    rank: int = 0
    interleave: int = 1
    """Consecutive tokens on one rank; must divide the block size."""


NO_CONTEXT_PARALLEL = ContextParallel()


@triton.jit
def slot_mapping_kernel(
    # tensors
    query_start_loc,
    positions,
    block_table,
    slots,
    # sizes
    num_reqs,
    capacity,
    # strides
    table_stride,
    # meta
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    CP_SIZE: tl.constexpr,  # noqa: N803
    CP_RANK: tl.constexpr,  # noqa: N803
    INTERLEAVE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """One program a request, and one more that pads."""
    req = tl.program_id(0)
    first = tl.load(query_start_loc + req)
    if req == num_reqs:
        for begin in range(first, capacity, BLOCK):
            place = begin + tl.arange(0, BLOCK)
            tl.store(slots + place, tl.full((BLOCK,), -1, tl.int64), mask=place < capacity)
        return
    end = tl.load(query_start_loc + req + 1)
    row = block_table + req.to(tl.int64) * table_stride
    for begin in range(first, end, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        inside = place < end
        position = tl.load(positions + place, mask=inside, other=0)
        block = tl.load(row + position // (BLOCK_SIZE * CP_SIZE), mask=inside, other=0).to(tl.int64)
        offset = position % (BLOCK_SIZE * CP_SIZE)
        if CP_SIZE == 1:
            slot = block * BLOCK_SIZE + offset
        else:
            turn = offset // INTERLEAVE
            local = turn // CP_SIZE * INTERLEAVE + offset % INTERLEAVE
            slot = tl.where(turn % CP_SIZE == CP_RANK, block * BLOCK_SIZE + local, -1)
        tl.store(slots + place, slot, mask=inside)


def slot_mapping(
    query_start_loc: Tensor,
    positions: Tensor,
    block_table: Tensor,
    slots: Tensor,
    block_size: int,
    cp: ContextParallel = NO_CONTEXT_PARALLEL,
) -> None:
    """Fill `slots` for a batch of ragged requests; what no token uses becomes -1.

    The padding is not cosmetic: a captured graph writes as many tokens as it was captured with, and a slot left over
    from an earlier step would be overwritten.

    Args:
        query_start_loc: int32 [num_reqs + 1], where each request's tokens begin; the last entry is the token count.
        positions: int64 [at least the token count], each token's place in its sequence.
        block_table: int32 [at least num_reqs, width], in batch order.
        slots: int64 [max_num_batched_tokens], the output; every element is written.
        block_size: tokens a block, 1 to 256; with context parallelism on one rank.
        cp: context parallelism.

    Raises:
        TypeError, ValueError: tensors or sizes that do not go together.
    """
    _expect(query_start_loc, positions, block_table, slots, block_size, cp)
    num_reqs = len(query_start_loc) - 1
    slot_mapping_kernel[(num_reqs + 1,)](
        query_start_loc,
        positions,
        block_table,
        slots,
        num_reqs,
        len(slots),
        block_table.stride(0),
        BLOCK_SIZE=block_size,
        CP_SIZE=cp.size,
        CP_RANK=cp.rank,
        INTERLEAVE=cp.interleave,
        BLOCK=_BLOCK,
        num_warps=4,
    )


def slot_mapping_reference(
    query_start_loc: Tensor,
    positions: Tensor,
    block_table: Tensor,
    slots: Tensor,
    block_size: int,
    cp: ContextParallel = NO_CONTEXT_PARALLEL,
) -> None:
    """The same in plain torch."""
    _expect(query_start_loc, positions, block_table, slots, block_size, cp)
    lengths = query_start_loc.diff()
    request = torch.arange(len(lengths), device=slots.device).repeat_interleave(lengths)
    count = len(request)
    position = positions[:count]
    virtual = block_size * cp.size
    block = block_table[request, position // virtual].to(torch.int64)
    offset = position % virtual
    turn = offset // cp.interleave
    local = turn // cp.size * cp.interleave + offset % cp.interleave
    slots[:count] = torch.where(turn % cp.size == cp.rank, block * block_size + local, PAD_SLOT)
    slots[count:] = PAD_SLOT


def _expect(
    query_start_loc: Tensor,
    positions: Tensor,
    block_table: Tensor,
    slots: Tensor,
    block_size: int,
    cp: ContextParallel,
) -> None:
    expect("query_start_loc", query_start_loc, (None,), torch.int32)
    expect("positions", positions, (None,), torch.int64, query_start_loc)
    expect("block_table", block_table, (None, None), torch.int32, query_start_loc)
    expect("slots", slots, (None,), torch.int64, query_start_loc)
    expect_block_size(block_size)
    num_reqs = len(query_start_loc) - 1
    if not 0 <= num_reqs <= len(block_table):
        raise ValueError(f"query_start_loc: {num_reqs} requests, block_table has {len(block_table)} rows")
    if not 0 <= cp.rank < cp.size or cp.interleave < 1 or block_size % cp.interleave:
        raise ValueError(f"cp: expected a rank below the size and an interleave that divides {block_size}, got {cp}")
