"""Does what a worker does at every step of a replay, on real memory, and compares all of it with what should be."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .attention import attention_reference, attention_same_precision, relative_error, within_budget
from .block_table import RowWrites
from .cache_layout import LAYOUTS
from .findings import Difference, Findings
from .fingerprint import HEAD_SIZE, NOBODY, decode, encode
from .metadata import StepMetadata
from .ops import TORCH, TRITON, Ops
from .steps import Batch, Entry, Geometry, Live, Write
from .worker import Tokens, Worker, batch_tokens, history_of

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Options:
    """How a validation runs.

    Attributes:
        device: `cpu` or `cuda`.
        dtype: of K and V, a key of DTYPES.
        layout: of the paged cache, a key of LAYOUTS.
        kv_heads: heads of K and V, each of size 16.
        query_heads: a multiple of it.
        attention_requests: requests of a sampled step whose attention is computed.
        attention_queries: of a longer chunk, that many of the last tokens.
    """

    device: str = "cpu"
    dtype: str = "bf16"
    layout: str = "packed"
    kv_heads: int = 1
    query_heads: int = 4
    attention_requests: int = 8
    attention_queries: int = 64


class Validator:
    """Takes a replay's batches one by one.

    On a CPU the plain torch operations do every batch and the kernels, interpreted, the sampled ones; on CUDA the
    kernels do all. What a sampled step computes with kernels is compared with torch's result on the same inputs.
    """

    def __init__(self, geometry: Geometry, options: Options, kernels: Ops = TRITON, torch_ops: Ops = TORCH) -> None:
        """Allocate and poison the worker's memory.

        Args:
            geometry: of the simulated engine.
            options: how it runs.
            kernels: the operations under test; a test of the validation itself plants faults in them.
            torch_ops: the plain ones.
        """
        self.findings = Findings()
        self._geometry = geometry
        self._options = options
        self._kernels = kernels
        self._torch = torch_ops
        self._device = torch.device(options.device)
        self._on_cpu = self._device.type == "cpu"
        dtype = DTYPES[options.dtype]
        self.worker = Worker(geometry, LAYOUTS[options.layout], options.kv_heads, dtype, self._device)

    def run(self, batch: Batch) -> None:
        """Do a batch and check it."""
        worker, findings = self.worker, self.findings
        kernels = batch.sampled or not self._on_cpu
        ops = self._kernels if kernels else self._torch
        worker.meter.enabled = not (self._on_cpu and kernels)
        step = max(batch.first_step, 0)
        self._read_back(step, batch.leaving, ops if kernels else None)
        worker.forget(batch.leaving)
        if not batch.entries:
            return
        findings.batches += 1
        findings.steps_checked += batch.sampled
        for request, wrong in batch.outside:
            text = f"id {wrong} was given out, which is reserved or does not exist"
            findings.add(Difference("range", step, request, -1, -1, wrong, text))
        entries = list(batch.entries.values())
        self._append(step, batch.moved, batch.sampled, ops)
        self._append(step, batch.writes, batch.sampled, ops)
        worker.hold(entry.live for entry in entries)
        tokens = batch_tokens(batch, self._geometry.block_size)
        if batch.sampled and self._geometry.page_size > 1 and self._geometry.slots:
            self._check_allocation(step, entries, tokens)
        metadata = worker.metadata(ops, entries, tokens, padded=batch.sampled)
        self._check_mapping(step, metadata, entries, tokens, padded=batch.sampled)
        worker.write(ops, metadata, tokens.fingerprint)
        findings.tokens_written += len(tokens.slot)
        admitted = [entry for entry in entries if entry.hits]
        findings.prefix_tokens_checked += sum(entry.hits for entry in admitted)
        read = entries if batch.sampled else admitted
        self._read_back(step, [entry.live for entry in read], ops if kernels else None)
        if batch.sampled:
            self._count_shared(entries)
            self._check_attention(step, entries)

    def finish(self) -> dict[str, Any]:
        """Look at all of the memory once more; returns the counts and the throughput measured on the way."""
        self._sweep()
        return self.findings.as_dict() | {"throughput": self.worker.meter.figures()}

    # -- tables

    def _append(self, step: int, writes: list[Write], sampled: bool, ops: Ops) -> None:
        worker = self.worker
        rows = sorted({write.row for write in writes})
        index = worker.put(np.array(rows, np.int64), torch.int64)
        before = worker.table[index] if sampled else worker.table[:0]
        staged = worker.append(ops, writes)
        if sampled and staged is not None:
            local = worker.put(np.searchsorted(rows, staged.rows.cpu().numpy()))
            self._torch.append_rows(before, RowWrites(local, *staged[1:]))
            self._same("table", step, worker.table[index], before, "rows after new ids were appended")

    def _check_mapping(
        self, step: int, metadata: StepMetadata, entries: list[Entry], tokens: Tokens, *, padded: bool
    ) -> None:
        worker = self.worker
        if padded and not self._geometry.slots:
            expected = torch.full_like(metadata.block_table, -7)
            index = worker.put(np.array([entry.live.row for entry in entries]))
            self._torch.gather_rows(worker.table, index, worker.counts, expected)
            self._same("table", step, metadata.block_table, expected, "rows gathered for the batch")
        found = metadata.slot_mapping.cpu().numpy()
        self.findings.compare_slots(step, found, tokens.slot, tokens.request, tokens.position)

    def _same(self, kind: str, step: int, found: Tensor, expected: Tensor, what: str) -> None:
        wrong = int((found != expected).sum())
        if wrong:
            row, column = (found != expected).nonzero()[0].tolist()
            text = f"{what}: {wrong} entries differ, the first in row {row}, column {column}"
            self.findings.add(Difference(kind, step, -1, -1, -1, int(found[row, column]), text), wrong)

    def _check_allocation(self, step: int, entries: list[Entry], tokens: Tokens) -> None:
        """The slots of the step must be those that the allocation kernels give out of the step's new pages."""
        size, put = self._geometry.page_size, self.worker.put
        computed = np.array([entry.computed for entry in entries])
        counts = np.array([entry.tokens for entry in entries])
        last = np.array([entry.live.ids[entry.computed - 1] if entry.computed else -1 for entry in entries])
        new = tokens.slot[tokens.position % size == 0] // size
        after, free, last = (put(x.astype(np.int64), torch.int64) for x in (computed + counts, new, last))
        out = torch.full((len(tokens.slot),), -7, dtype=torch.int64, device=self._device)
        if (counts == 1).all():
            self._kernels.alloc_decode(after, last, free, out, size)
        else:
            self._kernels.alloc_extend(put(computed, torch.int64), after, last, free, out, size)
        found = out.cpu().numpy()
        for place in np.flatnonzero(found != tokens.slot)[:1].tolist():
            text = f"the allocation rule gives slot {found[place]}"
            request, position, slot = (int(x[place]) for x in (tokens.request, tokens.position, tokens.slot))
            wrong = int((found != tokens.slot).sum())
            self.findings.add(Difference("allocation", step, request, position, slot, slot // size, text), wrong)

    # -- memory

    def _read_back(self, step: int, lives: list[Live], kernels: Ops | None) -> None:
        """Read the histories of requests by way of the table: the shadow, and with `kernels` K and V too."""
        lives = [live for live in lives if live.tokens]
        if not lives:
            return
        worker, size = self.worker, self._geometry.block_size
        history = history_of(lives, size)
        expected = history.tokens
        found, slots = worker.read_shadow(history)
        self._compare(step, found, expected, slots)
        if kernels is None:
            return
        rows = worker.put(history.rows)
        self._compare_rows(step, *worker.read(kernels, rows, history), expected, slots)
        if self._on_cpu and kernels is self._kernels:
            worker.meter.enabled = True
            worker.read(self._torch, rows, history)
            worker.meter.enabled = False

    def _compare(self, step: int, found: np.ndarray, expected: Tokens, slots: np.ndarray) -> None:
        self.findings.compare_fingerprints(
            step, found, expected.fingerprint, expected.request, expected.position, slots, self._block_tokens
        )

    def _compare_rows(self, step: int, key: Tensor, value: Tensor, expected: Tokens, slots: np.ndarray) -> None:
        """Bits first; what differs is decoded to say whose it is."""
        self.findings.tokens_checked += len(slots)
        wanted = encode(self.worker.put(expected.fingerprint, torch.int64), key.shape[1], key.dtype)
        wrong = ((key != wanted[0]) | (value != wanted[1])).flatten(1).any(1)
        if bool(wrong.any()):
            place = wrong.nonzero().flatten()
            k, v = decode(key[place], value=False), decode(value[place], value=True)
            index = place.cpu().numpy()
            bad = torch.where(k[:, 0] != self.worker.put(expected.fingerprint[index], torch.int64), k[:, 0], v[:, 0])
            columns = (expected.request, expected.position, expected.slot, expected.fingerprint)
            self.findings.tokens_checked -= len(index)
            self._compare(step, bad.cpu().numpy(), Tokens(*(column[index] for column in columns)), slots[index])

    @property
    def _block_tokens(self) -> int:
        """Slots that a block or page has, for naming it."""
        return self._geometry.page_size

    def _count_shared(self, entries: Iterable[Entry]) -> None:
        rows = [entry.live.ids[: entry.live.count] for entry in entries]
        blocks = np.concatenate(rows)
        self.findings.shared_blocks_checked += len(blocks) - len(np.unique(blocks))

    def _sweep(self) -> None:
        """K and V of every slot must be what the shadow has, and nothing may stand in the null block or page."""
        reserved = self._geometry.reserved * self._geometry.block_size
        wrong = self.worker.shadow[:reserved] != NOBODY
        cache = self.worker.cache
        for begin in range(0, len(self.worker.shadow), _SWEEP_SLOTS):
            expected = self.worker.shadow[begin : begin + _SWEEP_SLOTS]
            slots = torch.arange(begin, begin + len(expected), device=self._device)
            key, value = cache.rows(slots)
            if begin == 0:
                wrong = wrong | ~(key.isnan().flatten(1).all(1) & value.isnan().flatten(1).all(1))[:reserved]
            wanted = encode(expected, cache.kv_heads, key.dtype)
            differ = ~(_same_bits(key, wanted[0]) & _same_bits(value, wanted[1]))
            if bool(differ.any()):
                slot = begin + int(differ.nonzero()[0])
                text = "K and V at the end are not what was written last"
                block = slot // self._block_tokens
                self.findings.add(Difference("memory", -1, -1, -1, slot, block, text), int(differ.sum()))
        if bool(wrong.any()):
            slot = int(wrong.nonzero()[0])
            text = f"{int(wrong.sum())} slots were written that are never handed out"
            self.findings.add(
                Difference("reserved", -1, -1, -1, slot, slot // self._block_tokens, text), int(wrong.sum())
            )

    # -- attention

    def _check_attention(self, step: int, entries: list[Entry]) -> None:
        """Attention of a few requests of the step, those that decode and those that prefill each in one call."""
        first = step % len(entries)
        few = (entries[first:] + entries[:first])[: self._options.attention_requests]
        for name in ("decode", "prefill"):
            some = [entry for entry in few if (entry.tokens == 1) == (name == "decode")]
            if some:
                self._attend(step, name, some)

    def _attend(self, step: int, name: str, entries: list[Entry]) -> None:
        worker, options = self.worker, self._options
        metadata = self._attention_metadata(entries)
        generator = torch.Generator(self._device).manual_seed(step)
        shape = (metadata.num_tokens, options.query_heads, HEAD_SIZE)
        query = torch.randn(shape, generator=generator, device=self._device).to(worker.dtype)
        out = torch.full_like(query, torch.nan)
        scale = HEAD_SIZE**-0.5
        read = int(metadata.seq_lens.sum()) * 2 * options.kv_heads * HEAD_SIZE * query.element_size()
        run = self._kernels.paged_decode if name == "decode" else self._kernels.paged_prefill
        with worker.meter.timed(f"{name}_attention", metadata.num_tokens, read):
            run(query, worker.cache, metadata, out, scale)
        exact = attention_reference(query, worker.cache, metadata, scale)
        worker.meter.enabled = self._on_cpu
        with worker.meter.timed(f"{name}_attention" if self._on_cpu else f"torch_{name}", metadata.num_tokens, read):
            same = attention_same_precision(query, worker.cache, metadata, scale)
        worker.meter.enabled = not self._on_cpu
        error, budget = relative_error(out, exact), relative_error(same, exact)
        findings = self.findings
        findings.attention_checked += metadata.num_tokens
        findings.attention_error_max = max(findings.attention_error_max, error)
        if budget:
            findings.attention_error_to_torch_max = max(findings.attention_error_to_torch_max, error / budget)
        if not within_budget(error, budget, query.dtype):
            text = f"{name} attention is off by {error:.3g} (relative), torch in the same precision by {budget:.3g}"
            request = entries[0].live.request if len(entries) == 1 else -1
            findings.add(Difference("attention", step, request, -1, -1, -1, text))

    def _attention_metadata(self, entries: list[Entry]) -> StepMetadata:
        """Of each request, the last few tokens of its chunk."""
        put = self.worker.put
        lengths = np.array([min(entry.tokens, self._options.attention_queries) for entry in entries])
        seq_lens = np.array([entry.computed + entry.tokens for entry in entries])
        return StepMetadata(
            num_reqs=len(entries),
            num_tokens=int(lengths.sum()),
            max_query_len=int(lengths.max()),
            max_seq_len=int(seq_lens.max()),
            query_start_loc=put(np.concatenate(([0], np.cumsum(lengths)))),
            seq_lens=put(seq_lens),
            block_table=self.worker.table,
            rows=put(np.array([entry.live.row for entry in entries])),
            slot_mapping=self.worker.slot_mapping,
        )


_SWEEP_SLOTS = 1 << 17


def _same_bits(found: Tensor, expected: Tensor) -> Tensor:
    """Bool [n]: rows that are equal, NaN being equal to NaN."""
    return ((found == expected) | (found.isnan() & expected.isnan())).flatten(1).all(1)
