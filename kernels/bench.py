"""`kernels bench`: throughput on layouts out of a replay, against what the device and others can do."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from ..sim.settings import Settings
from ..traces.trace import Trace
from .attention import attention_same_precision
from .baselines import libraries, torch_attention
from .cache_layout import LAYOUTS, SEPARATE, KVCache, KVCacheLayout
from .ceilings import Ceilings, measure_ceilings
from .launch import ceil_div
from .metadata import StepMetadata
from .ops import TORCH, TRITON
from .snapshot import Snapshot, fullest
from .stopwatch import Stopwatch
from .validate import device_name
from .validator import DTYPES

PER_TOKEN = "per-token"
"""Names SGLang's layout, where ids are slots."""
_POOLS_OF_TRAFFIC = 5
Progress = Callable[[int, int | None], None] | None


@dataclass(frozen=True)
class Shape:
    """Sizes of the benchmark.

    Attributes:
        kv_heads: of the cache.
        query_heads: of the queries.
        head_size: elements a head.
        capacity_tokens: of the simulated and the real pool.
        write_tokens: tokens a step whose slots are mapped and whose K and V are written.
        prefill_tokens: of the chunk that attends to its history.
        attention_requests: requests that decode at once; None: all of the layout.
    """

    kv_heads: int
    query_heads: int
    head_size: int
    capacity_tokens: int
    write_tokens: int
    prefill_tokens: int
    attention_requests: int | None


SHAPES = {
    "cpu": Shape(4, 8, 128, 32_768, 8_192, 256, 8),
    "cuda": Shape(8, 32, 128, 524_288, 65_536, 2_048, None),
}
"""Default sizes: K and V of the pool are larger than the last-level cache, 64 MiB on a CPU and 2 GiB on CUDA."""


def bench(
    trace: Trace,
    cases: list[tuple[int | str, Settings, int]],
    device: str,
    dtype: str,
    layout: str,
    shape: Shape,
    progress: Progress = None,
) -> dict[str, Any]:
    """Measure the ceilings and every operation on every layout.

    Args:
        trace: whose replays give the layouts.
        cases: (block size or `per-token`, settings of the replay, capacity as `simulate` takes it) of each.
        device: `cpu`: plain torch is measured; `cuda`: the Triton kernels, and torch and libraries beside them.
        dtype: of K and V, a key of DTYPES.
        layout: of paged K and V, a key of LAYOUTS.
        shape: sizes.
        progress: called with the cases done and all cases.

    Returns:
        Ceilings and a row a measurement, ready for JSON.

    Raises:
        InputError: a replay that gives no layout to measure on.
    """
    place = torch.device(device)
    watch = Stopwatch(place)
    ceilings = measure_ceilings(place, DTYPES[dtype], watch)
    memory = _Memory(shape, DTYPES[dtype], place)
    # Enough traffic to fill the pool several times over, and no more.
    prompts = np.cumsum(trace.prompt_tokens.astype(np.int64))
    trace = trace.head(int(np.searchsorted(prompts, _POOLS_OF_TRAFFIC * shape.capacity_tokens)) + 1)
    rows: list[dict[str, Any]] = []
    for done, (name, settings, capacity) in enumerate(cases):
        if progress is not None:
            progress(done, len(cases))
        found = fullest(trace, settings, capacity)
        # A fresh layout shares no blocks: both have the requests that fit without sharing.
        found = found.unshared()
        for snapshot in (found, found.fresh()):
            runner = _Runner(snapshot, name, memory, LAYOUTS[layout], shape, ceilings, watch)
            rows += runner.rows()
    return {
        "device": device_name(device),
        "measured": "torch on the CPU" if device == "cpu" else "Triton kernels on the GPU",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "trace": trace.name,
        "dtype": dtype,
        "kv_heads": shape.kv_heads,
        "query_heads": shape.query_heads,
        "head_size": shape.head_size,
        "capacity_tokens": shape.capacity_tokens,
        "ceilings": {
            "copy_gb_per_s": ceilings.copy_bytes_per_s / 1e9,
            "matmul_tflop_per_s": ceilings.matmul_flop_per_s / 1e12,
        },
        "rows": rows,
    }


class _Memory:
    """Random K and V, made once and seen through each layout."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        row = shape.kv_heads * shape.head_size
        # Room for the null block, and for what is left of the last block.
        slots = shape.capacity_tokens + 512
        self.flat = torch.randn(2 * slots * row, device=device, dtype=dtype)
        self.new = torch.randn(2, shape.write_tokens, shape.kv_heads, shape.head_size, device=device, dtype=dtype)

    def cache(self, geometry_slots: bool, layout: KVCacheLayout, block_size: int, shape: Shape) -> KVCache:
        """A cache of blocks of that size over the memory."""
        layout = SEPARATE if geometry_slots else layout
        blocks = len(self.flat) // (2 * shape.kv_heads * shape.head_size * block_size)
        extents = layout.physical_shape(blocks, block_size, shape.kv_heads, shape.head_size)
        count = int(np.prod(extents))
        parts = [self.flat[:count]] if layout.packed else [self.flat[:count], self.flat[count : 2 * count]]
        return layout.view(*(part.view(extents) for part in parts))


class _Runner:
    """Measures all operations on one layout."""

    def __init__(
        self,
        snapshot: Snapshot,
        name: int | str,
        memory: _Memory,
        layout: KVCacheLayout,
        shape: Shape,
        ceilings: Ceilings,
        watch: Stopwatch,
    ) -> None:
        geometry = snapshot.geometry
        self._device = memory.flat.device
        self._cuda = self._device.type == "cuda"
        self._ops = TRITON if self._cuda else TORCH
        self._name = name
        self._shape = shape
        self._ceilings = ceilings
        self._watch = watch
        self._memory = memory
        self._cache = memory.cache(geometry.slots, layout, geometry.block_size, shape)
        self._snapshot = snapshot
        self._everyone = np.arange(len(snapshot.rows))
        self._table = torch.from_numpy(self._snapshot.table).to(self._device)
        self._row_bytes = 2 * shape.kv_heads * shape.head_size * self._cache.k.element_size()

    def rows(self) -> list[dict[str, Any]]:
        """All measurements."""
        found = [self._slot_mapping(), self._write(), self._gather()]
        return [*found, *self._decode(), *self._prefill()]

    def _slot_mapping(self) -> dict[str, Any]:
        step, positions = self._write_step()
        slots = torch.empty(step.num_tokens + 64, dtype=torch.int64, device=self._device)
        size = self._cache.block_size
        seconds = self._watch.median(
            lambda: self._ops.slot_mapping(step.query_start_loc, positions, self._table, slots, size)
        )
        return self._row("slot mapping", step.num_tokens, seconds, num_bytes=20 * step.num_tokens)

    def _write(self) -> dict[str, Any]:
        step, positions = self._write_step()
        slots = torch.empty(step.num_tokens, dtype=torch.int64, device=self._device)
        TORCH.slot_mapping(step.query_start_loc, positions, self._table, slots, self._cache.block_size)
        key, value = self._memory.new[:, : step.num_tokens]
        seconds = self._watch.median(lambda: self._ops.write_kv(key, value, slots, self._cache))
        return self._row("write K and V", step.num_tokens, seconds, num_bytes=2 * self._row_bytes * step.num_tokens)

    def _gather(self) -> dict[str, Any]:
        step = self._step(self._everyone, np.ones_like(self._everyone))
        offsets, key, value = self._gathered(step)
        seconds = self._watch.median(
            lambda: self._ops.gather_kv(self._cache, step.block_table, step.rows, offsets, key, value, step.max_seq_len)
        )
        return self._row("gather K and V", len(key), seconds, num_bytes=2 * self._row_bytes * len(key))

    def _decode(self) -> Iterator[dict[str, Any]]:
        some = self._everyone[: self._shape.attention_requests]
        step = self._step(some, np.ones_like(some))
        num_bytes = int(step.seq_lens.sum()) * self._row_bytes
        for name, call in self._attention("decode", step):
            seconds = self._watch.median(call)
            yield self._row("decode attention", step.num_tokens, seconds, num_bytes=num_bytes, by=name)

    def _prefill(self) -> Iterator[dict[str, Any]]:
        lengths = self._snapshot.seq_lens
        longest = int(np.argmax(lengths))
        length = int(lengths[longest])
        chunk = min(self._shape.prefill_tokens, length)
        step = self._step(np.array([longest]), np.array([chunk]))
        seen = chunk * (length - chunk) + chunk * (chunk + 1) // 2
        flop = 4 * self._shape.query_heads * self._shape.head_size * seen
        for name, call in self._attention("prefill", step):
            seconds = self._watch.median(call)
            yield self._row("prefill attention", step.num_tokens, seconds, flop=flop, by=name)

    def _attention(self, kind: str, step: StepMetadata) -> Iterator[tuple[str, Callable[[], object]]]:
        shape = self._shape
        query = torch.randn(step.num_tokens, shape.query_heads, shape.head_size, device=self._device).to(
            self._cache.k.dtype
        )
        scale = shape.head_size**-0.5
        if self._cuda:
            out = torch.empty_like(query)
            kernel = self._ops.paged_decode if kind == "decode" else self._ops.paged_prefill
            yield "triton", lambda: kernel(query, self._cache, step, out, scale)
            if kind == "decode":
                yield from libraries(query, self._cache, step, scale)
        else:
            yield "torch", lambda: attention_same_precision(query, self._cache, step, scale)
        offsets, key, value = self._gathered(step)
        TORCH.gather_kv(self._cache, step.block_table, step.rows, offsets, key, value, step.max_seq_len)
        yield "torch on gathered history", torch_attention(query, key, value, step, scale)

    # -- what the operations are given

    def _write_step(self) -> tuple[StepMetadata, Tensor]:
        """The last tokens of every request, together no more than a step has; and their positions."""
        lengths = self._snapshot.seq_lens
        share = ceil_div(self._shape.write_tokens, len(lengths))
        counts = np.minimum(lengths, share)
        counts[np.cumsum(counts) > self._shape.write_tokens] = 0
        position = np.concatenate(
            [np.arange(end - count, end) for end, count in zip(lengths.tolist(), counts.tolist(), strict=True)]
        )
        return self._step(self._everyone, counts), torch.from_numpy(position).to(self._device)

    def _step(self, members: np.ndarray, query_lens: np.ndarray) -> StepMetadata:
        """A step of some of the requests, with so many tokens of each."""
        seq_lens = self._snapshot.seq_lens[members]
        return StepMetadata(
            num_reqs=len(members),
            num_tokens=int(query_lens.sum()),
            max_query_len=int(query_lens.max()),
            max_seq_len=int(seq_lens.max()),
            query_start_loc=self._ints(np.concatenate(([0], np.cumsum(query_lens)))),
            seq_lens=self._ints(seq_lens),
            block_table=self._table,
            rows=self._ints(members),
            slot_mapping=torch.empty(0, dtype=torch.int64, device=self._device),
        )

    def _ints(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.int32)).to(self._device)

    def _gathered(self, step: StepMetadata) -> tuple[Tensor, Tensor, Tensor]:
        offsets = self._ints(np.concatenate(([0], np.cumsum(step.seq_lens.cpu().numpy()))))
        key = torch.empty(
            int(offsets[-1]),
            self._shape.kv_heads,
            self._shape.head_size,
            dtype=self._cache.k.dtype,
            device=self._device,
        )
        return offsets, key, torch.empty_like(key)

    def _row(
        self, operation: str, tokens: int, seconds: float, num_bytes: int = 0, flop: int = 0, by: str | None = None
    ) -> dict[str, Any]:
        reached = flop / seconds if flop else num_bytes / seconds
        ceiling = self._ceilings.matmul_flop_per_s if flop else self._ceilings.copy_bytes_per_s
        return {
            "operation": operation,
            "by": by or ("triton" if self._cuda else "torch"),
            "block_size": self._name,
            "layout": "fragmented" if self._snapshot.fragmented else "fresh",
            "consecutive_ids": self._snapshot.consecutive,
            "requests": len(self._snapshot.rows),
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
            "gb_per_s": num_bytes / seconds / 1e9 if num_bytes else None,
            "tflop_per_s": flop / seconds / 1e12 if flop else None,
            "ceiling": "matmul" if flop else "copy",
            "share_of_ceiling": reached / ceiling,
        }
