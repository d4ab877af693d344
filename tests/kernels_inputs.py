"""Inputs for the kernel tests: random layouts in real memory.

Importing this makes Triton interpret kernels, and skips the module that imports it where the extra is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

# Triton decides when it is imported, and the first import may be the next line's.
os.environ["TRITON_INTERPRET"] = "1"
torch = pytest.importorskip("torch", reason="needs the extra `kernels`")
pytest.importorskip("triton", reason="needs the extra `kernels`")

from kvreplay.kernels.cache_layout import KVCache, KVCacheLayout  # noqa: E402
from kvreplay.kernels.metadata import StepMetadata  # noqa: E402
from kvreplay.kernels.write_kv import write_kv_reference  # noqa: E402

# Small tensors, and other tests beside these on the same cores: threads that wait for each other only cost.
torch.set_num_threads(1)

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SENTINEL = -7


def ints(values: Sequence[int] | np.ndarray, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(np.asarray(values, np.int64), dtype=dtype)


def offsets(lengths: Sequence[int]) -> torch.Tensor:
    return ints(np.cumsum([0, *lengths]))


def poisoned(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full(shape, torch.nan if dtype.is_floating_point else SENTINEL, dtype=dtype)


@dataclass(frozen=True)
class Paged:
    """Requests whose whole history lies in a paged cache, at shuffled blocks."""

    cache: KVCache
    step: StepMetadata
    key: torch.Tensor
    value: torch.Tensor
    history: torch.Tensor
    """int32 [n + 1], where each request's tokens begin in `key`."""
    query: torch.Tensor


def table_of(rng: np.random.Generator, seq_lens: Sequence[int], block_size: int, width: int = 0) -> torch.Tensor:
    """Block table rows with distinct shuffled blocks, 0 behind them; int32 [n, width]."""
    counts = [-(-length // block_size) for length in seq_lens]
    blocks = rng.permutation(sum(counts) + 3) + 1
    table = np.zeros((len(counts), max(width, max(counts, default=0), 1)), np.int32)
    for row, (count, start) in enumerate(zip(counts, np.cumsum([0, *counts]), strict=False)):
        table[row, :count] = blocks[start : start + count]
    return torch.from_numpy(table)


def paged(
    seed: int,
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    block_size: int,
    layout: KVCacheLayout,
    dtype: torch.dtype,
    kv_heads: int = 2,
    group: int = 2,
    head_size: int = 64,
) -> Paged:
    """Random K, V and queries; what no request owns in the cache is NaN."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    table = table_of(rng, seq_lens, block_size)
    cache = layout.allocate(int(table.max() if len(table) else 0) + 2, block_size, kv_heads, head_size, dtype, "cpu")
    total = sum(seq_lens)
    key, value = (torch.randn(total, kv_heads, head_size, generator=generator).to(dtype) for _ in range(2))
    position = np.concatenate([np.arange(0), *(np.arange(length) for length in seq_lens)])
    row = np.arange(len(seq_lens)).repeat(seq_lens)
    slots = table.numpy()[row, position // block_size].astype(np.int64) * block_size + position % block_size
    write_kv_reference(key, value, torch.from_numpy(slots), cache)
    step = StepMetadata(
        num_reqs=len(seq_lens),
        num_tokens=sum(query_lens),
        max_query_len=max(query_lens, default=0),
        max_seq_len=max(seq_lens, default=0),
        query_start_loc=offsets(query_lens),
        seq_lens=ints(seq_lens),
        block_table=table,
        rows=ints(np.arange(len(seq_lens))),
        slot_mapping=torch.from_numpy(slots),
    )
    query = torch.randn(sum(query_lens), kv_heads * group, head_size, generator=generator).to(dtype)
    return Paged(cache, step, key, value, offsets(seq_lens), query)
