"""A worker of an engine, as far as its KV cache goes: tensors in real memory, and what a step does to them."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .block_table import RowWrites
from .cache_layout import SEPARATE, KVCache, KVCacheLayout
from .fingerprint import HEAD_SIZE, NOBODY, encode
from .gather_kv import history_slots
from .launch import ceil_div
from .metadata import StepMetadata
from .meter import Meter
from .ops import Ops
from .slot_mapping import PAD_SLOT
from .steps import Batch, Entry, Geometry, Live, Write

Int64 = npt.NDArray[np.int64]

_PADDING = 8
"""Captured graphs have sizes of multiples of it; the rows behind the tokens are garbage."""


@dataclass(frozen=True)
class Tokens:
    """The scheduled tokens of a batch, on the host: int64 [num_tokens] each."""

    request: Int64
    position: Int64
    slot: Int64
    """The simulator's own."""
    fingerprint: Int64


@dataclass(frozen=True)
class History:
    """All tokens that some requests have in the KV cache, in the same way."""

    rows: Int64
    offsets: Int64
    tokens: Tokens

    @property
    def max_len(self) -> int:
        return int(np.diff(self.offsets).max(initial=0))


class Worker:
    """Tables, slot mapping and KV memory on a device. What it does with them, a set of operations decides.

    Beside K and V, whose elements carry fingerprints, the shadow has one fingerprint a slot: cheap enough to be written
    and read at every step.
    """

    def __init__(
        self, geometry: Geometry, layout: KVCacheLayout, kv_heads: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.geometry = geometry
        self.device = device
        self.dtype = dtype
        self.meter = Meter(device)
        size = geometry.block_size
        heads = (kv_heads, HEAD_SIZE, dtype, device)
        # SGLang's buffers, `[slots + page_size, kv_heads, head_size]`, are separate tensors of blocks of one token.
        layout = SEPARATE if geometry.slots else layout
        self.cache: KVCache = layout.allocate(geometry.num_blocks, size, *heads)
        self.shadow = torch.full((geometry.num_blocks * size,), NOBODY, dtype=torch.int64, device=device)
        self.table = torch.zeros(geometry.max_reqs, geometry.width, dtype=torch.int32, device=device)
        self.counts = torch.zeros(geometry.max_reqs, dtype=torch.int32, device=device)
        self.batch_table = torch.full_like(self.table, -7) if not geometry.slots else self.table[:0]
        self.slot_mapping = torch.full((geometry.max_tokens,), -7, dtype=torch.int64, device=device)
        self._row_bytes = 2 * kv_heads * HEAD_SIZE * self.cache.k.element_size()

    def put(self, values: Int64, dtype: torch.dtype = torch.int32) -> Tensor:
        """A host array on the device."""
        return torch.from_numpy(values).to(self.device, dtype)

    def padded(self, count: int) -> int:
        """Rows of a captured graph that runs a batch of `count` requests."""
        return min(ceil_div(count, _PADDING) * _PADDING + _PADDING, self.geometry.max_reqs)

    def append(self, ops: Ops, writes: list[Write]) -> RowWrites | None:
        """Apply new ids to the table, in one launch."""
        if not writes:
            return None
        values = np.concatenate([write.ids for write in writes])
        offsets = np.cumsum([0, *(len(write.ids) for write in writes)])
        rows = np.array([write.row for write in writes])
        starts = np.array([write.start for write in writes])
        staged = RowWrites(self.put(rows), self.put(starts), self.put(offsets), self.put(values))
        with self.meter.timed("append_rows", len(values), 8 * len(values)):
            ops.append_rows(self.table, staged)
        return staged

    def hold(self, lives: Iterable[Live]) -> None:
        """Note how many ids the rows of requests hold."""
        rows, counts = zip(*((live.row, live.count) for live in lives), strict=True)
        self.counts[self.put(np.array(rows), torch.int64)] = self.put(np.array(counts))

    def forget(self, leaving: list[Live]) -> None:
        """Empty the rows of requests that leave. Their ids stay: a row that is read beyond its count shows."""
        if leaving:
            self.counts[self.put(np.array([live.row for live in leaving]), torch.int64)] = 0

    def metadata(self, ops: Ops, entries: list[Entry], tokens: Tokens, *, padded: bool) -> StepMetadata:
        """What the batch's attention calls would be given: its table and its slot mapping are made here."""
        geometry = self.geometry
        rows = self.put(np.array([entry.live.row for entry in entries]))
        lengths = np.array([entry.tokens for entry in entries])
        seq_lens = np.array([entry.computed + entry.tokens for entry in entries])
        query_start_loc = self.put(np.concatenate(([0], np.cumsum(lengths))))
        count = len(tokens.slot)
        if count > len(self.slot_mapping):
            self.slot_mapping = torch.full((count,), -7, dtype=torch.int64, device=self.device)
        positions = self.put(tokens.position, torch.int64)
        table = self.table
        if geometry.slots:
            # Engines with slots have no mapping to compute: what the allocator gave out stands in the rows.
            row = rows.long().repeat_interleave(query_start_loc.diff())
            self.slot_mapping[:count] = self.table[row, positions]
            self.slot_mapping[count:] = PAD_SLOT
        else:
            table = self.batch_table[: self.padded(len(entries)) if padded else len(entries)]
            with self.meter.timed("gather_rows", len(entries), 8 * table.numel()):
                ops.gather_rows(self.table, rows, self.counts, table)
            rows = self.put(np.arange(len(entries)))
            with self.meter.timed("slot_mapping", count, 20 * count):
                ops.slot_mapping(query_start_loc, positions, table, self.slot_mapping, geometry.block_size)
        return StepMetadata(
            num_reqs=len(entries),
            num_tokens=count,
            max_query_len=int(lengths.max(initial=0)),
            max_seq_len=int(seq_lens.max(initial=0)),
            query_start_loc=query_start_loc,
            seq_lens=self.put(seq_lens),
            block_table=table,
            rows=rows,
            slot_mapping=self.slot_mapping,
        )

    def write(self, ops: Ops, step: StepMetadata, fingerprints: Int64) -> None:
        """Write K and V (and the shadow) of the tokens, as a captured graph does: with garbage in rows behind them."""
        count = step.num_tokens
        rows = min(ceil_div(count, _PADDING) * _PADDING + _PADDING, len(step.slot_mapping))
        padded = np.full(rows, NOBODY, np.int64)
        padded[:count] = fingerprints
        content = self.put(padded, torch.int64)
        slots = step.slot_mapping[:rows]
        key, value = encode(content, self.cache.kv_heads, self.dtype)
        with self.meter.timed("write_kv", count, 2 * self._row_bytes * count):
            ops.write_kv(key, value, slots, self.cache)
        live = slots >= 0
        self.shadow[slots[live]] = content[live]

    def read_shadow(self, history: History) -> tuple[Int64, Int64]:
        """Fingerprints at the slots of the requests' histories, by way of the table; and these slots."""
        rows, offsets = self.put(history.rows), self.put(history.offsets)
        slots = history_slots(self.table, rows, offsets, self.geometry.block_size)
        return self.shadow[slots].cpu().numpy(), slots.cpu().numpy()

    def read(self, ops: Ops, rows: Tensor, history: History) -> tuple[Tensor, Tensor]:
        """K and V of the requests' histories, [tokens, kv_heads, 16] each, by way of the table."""
        offsets = self.put(history.offsets)
        shape = (int(history.offsets[-1]), self.cache.kv_heads, HEAD_SIZE)
        key, value = (torch.full(shape, torch.nan, dtype=self.dtype, device=self.device) for _ in range(2))
        with self.meter.timed("gather_kv", shape[0], 2 * self._row_bytes * shape[0]):
            ops.gather_kv(self.cache, self.table, rows, offsets, key, value, history.max_len)
        return key, value


def batch_tokens(batch: Batch, block_size: int) -> Tokens:
    """The tokens that a batch computes."""
    entries = batch.entries.values()
    return _tokens([(entry.live, entry.computed, entry.computed + entry.tokens) for entry in entries], block_size)


def history_of(lives: list[Live], block_size: int) -> History:
    """All tokens of some requests."""
    return History(
        np.array([live.row for live in lives], np.int64),
        np.cumsum([0, *(live.tokens for live in lives)]),
        _tokens([(live, 0, live.tokens) for live in lives], block_size),
    )


def _tokens(parts: list[tuple[Live, int, int]], block_size: int) -> Tokens:
    nothing = [np.empty(0, np.int64)]
    return Tokens(
        np.array([live.request for live, _, _ in parts], np.int64).repeat([stop - start for _, start, stop in parts]),
        np.concatenate(nothing + [np.arange(start, stop) for _, start, stop in parts]),
        np.concatenate(nothing + [live.slots(start, stop, block_size) for live, start, stop in parts]),
        np.concatenate(nothing + [live.fingerprints[start:stop] for live, start, stop in parts]),
    )
