"""The block table: append new block ids to rows, gather rows into batch order.

Shapes as vLLM 0.32.0 has them: the table is int32 `[max_num_reqs, max_num_blocks_per_req]`, a row a request slot. New
ids of many requests are staged on the host and applied in one launch; a step's batch then gets its own table, a row a
scheduled request, by an index from batch row to request slot.
"""

from __future__ import annotations

# torch and triton come with the extra `kernels`; `triton.jit` says nothing to type checkers of launches.
# pyright: reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .checks import expect
from .launch import ceil_div

_BLOCK = 1024


class RowWrites(NamedTuple):
    """Staged writes into rows of a table (n writes)."""

    rows: Tensor
    """int32 [n]; a row may come twice with different columns."""
    starts: Tensor
    """int32 [n], the column at which each write begins."""
    offsets: Tensor
    """int32 [n + 1], write `i` has `values[offsets[i]:offsets[i + 1]]`."""
    values: Tensor
    """int32 or int64 [offsets[n]]."""


@triton.jit
def append_rows_kernel(
    # tensors
    table,
    rows,
    starts,
    offsets,
    values,
    # strides
    table_stride,
    # meta
    BLOCK: tl.constexpr,  # noqa: N803
):
    """One program a write."""
    write = tl.program_id(0)
    row = tl.load(rows + write).to(tl.int64)
    target = table + row * table_stride + tl.load(starts + write)
    first = tl.load(offsets + write)
    count = tl.load(offsets + write + 1) - first
    for begin in range(0, count, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        ids = tl.load(values + first + place, mask=place < count)
        tl.store(target + place, ids.to(tl.int32), mask=place < count)


def append_rows(table: Tensor, writes: RowWrites) -> None:
    """Write staged values into rows of `table`, int32 [rows, width], in place.

    The caller keeps rows and columns within the table; they are not read back to be checked.

    Raises:
        TypeError, ValueError: tensors that do not go together.
    """
    _expect_writes(table, writes)
    count = len(writes.rows)
    if count:
        append_rows_kernel[(count,)](table, *writes, table.stride(0), BLOCK=_BLOCK, num_warps=4)


def append_rows_reference(table: Tensor, writes: RowWrites) -> None:
    """The same in plain torch."""
    _expect_writes(table, writes)
    counts = writes.offsets.diff()
    place = torch.arange(len(writes.values), device=table.device)
    shift = (writes.starts - writes.offsets[:-1]).repeat_interleave(counts)
    table[writes.rows.repeat_interleave(counts), place + shift] = writes.values.to(torch.int32)


def _expect_writes(table: Tensor, writes: RowWrites) -> None:
    count = len(writes.rows)
    expect("table", table, (None, None), torch.int32)
    expect("writes.rows", writes.rows, (count,), torch.int32, table)
    expect("writes.starts", writes.starts, (count,), torch.int32, table)
    expect("writes.offsets", writes.offsets, (count + 1,), torch.int32, table)
    expect("writes.values", writes.values, (None,), (torch.int32, torch.int64), table)


@triton.jit
def gather_rows_kernel(
    # tensors
    table,
    index,
    counts,
    out,
    # sizes
    num_reqs,
    width,
    # strides
    table_stride,
    out_stride,
    # meta
    BLOCK: tl.constexpr,  # noqa: N803
):
    """One program a row of the batch and BLOCK columns."""
    batch = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = batch < num_reqs
    row = tl.load(index + batch, mask=real, other=0).to(tl.int64)
    held = tl.load(counts + row, mask=real, other=0)
    ids = tl.load(table + row * table_stride + column, mask=column < held, other=0)
    tl.store(out + batch.to(tl.int64) * out_stride + column, ids, mask=column < width)


def gather_rows(table: Tensor, index: Tensor, counts: Tensor, out: Tensor) -> None:
    """Copy row `index[i]` of the table to row `i` of `out`, and zero what lies behind.

    Zero is the null block: whoever reads behind a row's end, or a row behind the batch's end (as a captured graph
    does, whose size is fixed), meets no block of anyone's.

    Args:
        table: int32 [max_num_reqs, width].
        index: int32 [num_reqs], the table's row of each request of the batch.
        counts: int32 [max_num_reqs], valid ids in each row of the table.
        out: int32 [max_num_reqs, width]; every element is written.

    Raises:
        TypeError, ValueError: tensors that do not go together.
    """
    _expect_gather(table, index, counts, out)
    grid = (out.shape[0], ceil_div(out.shape[1], _BLOCK))
    gather_rows_kernel[grid](
        table, index, counts, out, len(index), out.shape[1], table.stride(0), out.stride(0), BLOCK=_BLOCK, num_warps=4
    )


def gather_rows_reference(table: Tensor, index: Tensor, counts: Tensor, out: Tensor) -> None:
    """The same in plain torch."""
    _expect_gather(table, index, counts, out)
    column = torch.arange(table.shape[1], device=table.device)
    out[: len(index)] = table[index] * (column < counts[index, None])
    out[len(index) :] = 0


def _expect_gather(table: Tensor, index: Tensor, counts: Tensor, out: Tensor) -> None:
    expect("table", table, (None, None), torch.int32)
    rows, width = table.shape
    expect("index", index, (None,), torch.int32, table)
    expect("counts", counts, (rows,), torch.int32, table)
    expect("out", out, (None, width), torch.int32, table)
    if len(index) > len(out):
        raise ValueError(f"index: {len(index)} requests do not fit the {len(out)} rows of out")
