"""From the lines of a layout log to what a worker is given: rows, positions, and the ids to be appended.

A worker must see every step, as every token's K and V must be written. Between the steps that are looked at closely,
steps that only go on with what runs are merged into one batch: rows of the table only grow then and no slot is given
back, so that the merged batch writes what its steps wrote one after the other. A batch ends before a step in which
anybody comes, leaves or has its row changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..traces.errors import InputError
from .fingerprint import TokenIdentity

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Line = dict[str, Any]


@dataclass(frozen=True)
class Geometry:
    """Sizes of a worker's tensors.

    Attributes:
        engine: `vllm` or `sglang`.
        block_size: tokens that an id in the table stands for: 1 where ids are slots.
        page_size: tokens that the allocator hands out together.
        num_blocks: ids are below this; those below `reserved` are never handed out.
        reserved: 1 with blocks (the null block), `page_size` with slots (slots or page 0).
        max_reqs: rows of the table.
        width: columns of the table.
        max_tokens: tokens a step.
    """

    engine: str
    block_size: int
    page_size: int
    num_blocks: int
    reserved: int
    max_reqs: int
    width: int
    max_tokens: int

    @property
    def slots(self) -> bool:
        """Whether rows hold slot ids, logged as `[start, length]` runs, and not block ids."""
        return self.engine == "sglang"


@dataclass(slots=True)
class Live:
    """A request that has a row."""

    request: int
    row: int
    fingerprints: Int64
    """Of all tokens that it may ever have."""
    ids: Int64
    """Blocks or slots in its row, the first `count` of these."""
    count: int = 0
    tokens: int = 0
    """In the KV cache."""

    def slots(self, start: int, stop: int, block_size: int) -> Int64:
        """Slots of tokens `start` to `stop - 1`: the simulator's own, as logged."""
        position = np.arange(start, stop)
        return self.ids[position // block_size] * block_size + position % block_size

    def write(self, start: int, ids: Int64) -> None:
        """Put ids into the row from column `start`."""
        end = start + len(ids)
        if end > len(self.ids):
            self.ids = np.concatenate((self.ids, np.empty(end, np.int64)))
        self.ids[start:end] = ids
        self.count = max(self.count, end)


class Write(NamedTuple):
    """Ids for a row, from a column on."""

    row: int
    start: int
    ids: Int64


@dataclass(slots=True)
class Entry:
    """What a request computes in a batch: tokens `computed` to `computed + tokens - 1`."""

    live: Live
    computed: int
    tokens: int
    hits: int
    """Tokens in the cache before it, if it was admitted in this batch; else 0."""


@dataclass(slots=True)
class Batch:
    """One step, or several merged ones.

    Attributes:
        first_step: its number in the log.
        last_step: as `first_step` unless merged.
        sampled: whether it is to be looked at closely; then it is one step.
        leaving: requests whose rows are given back before it; their histories are still whole.
        moved: writes that replace ids of rows before it (a prefix cache that exchanged equal slots).
        writes: the ids that its tokens need.
        entries: in the engine's order.
        outside: (request, id) of ids that are never handed out, or do not exist; others stand in for them.
    """

    first_step: int
    last_step: int
    sampled: bool
    leaving: list[Live] = field(default_factory=list)
    moved: list[Write] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    entries: dict[int, Entry] = field(default_factory=dict)
    outside: list[tuple[int, int]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(entry.tokens for entry in self.entries.values())


class StepReader:
    """Reads a layout log line by line and gives batches.

    Lines are those of `kvreplay.sim.layout.LayoutLog`, with one optional key more, `rows`: a list of
    `[request, first_token, [[start, length], ...]]`, slot ids that stand in a request's row before the step although
    they were not handed out to it: prefix hits at its admission, and slots that a prefix cache exchanged for others.
    """

    def __init__(
        self,
        geometry: Geometry,
        identity: TokenIdentity,
        lengths: Int64,
        every: int,
        emit: Callable[[Batch], None],
    ) -> None:
        """Start before the first line.

        Args:
            geometry: of the worker.
            identity: fingerprints of the trace's tokens.
            lengths: int64 [requests], tokens that each may have at most.
            every: one step in so many is sampled; of two samples, one waits for a step that computes a prompt.
            emit: called with each batch, in order; what it holds is up to date until `emit` returns.
        """
        self.steps = 0
        """Lines read."""
        self._geometry = geometry
        self._identity = identity
        self._lengths = lengths
        self._every = every
        self._due = 0
        self._awaits_prompt = False
        self._emit = emit
        self._live: dict[int, Live] = {}
        self._free_rows = list(range(geometry.max_reqs - 1, -1, -1))
        self._finished: list[int] = []
        """Whose last token has come; an engine that runs ahead may schedule them in the next step still."""
        self._batch: Batch | None = None

    def feed(self, line: Line) -> None:
        """Read the next line."""
        if "scheduled" not in line:
            return
        self.steps += 1
        step, scheduled = line["step"], line["scheduled"]
        sampled = self._sampled(step, scheduled)
        going = {entry[0] for entry in scheduled}
        leaving = [request for request in self._finished if request not in going] + line["preempted"]
        rows = line.get("rows", ())
        batch = self._batch
        if batch is None or sampled or batch.sampled or leaving or rows or not self._goes_on(batch, scheduled):
            self._flush()
            batch = self._batch = Batch(step, step, sampled)
            for request in leaving:
                self._release(batch, request)
        batch.last_step = step
        for request, start, runs in rows:
            if request not in self._live and request not in going:
                # It has left since.
                continue
            live = self._live.get(request) or self._admit(request)
            ids = self._inside(batch, request, _expand(runs))
            live.write(start, ids)
            batch.moved.append(Write(live.row, start, ids))
        for entry in scheduled:
            self._schedule(batch, *entry)
        self._finished = [request for request in self._finished if request in going] + line["finished"]

    def close(self) -> None:
        """Give the last batch, after the last line."""
        self._flush()
        last = Batch(-1, -1, sampled=True)
        for request in list(self._live):
            self._release(last, request)
        self._emit(last)

    def _sampled(self, step: int, scheduled: list[list[Any]]) -> bool:
        """Whether to look closely at this step. Most steps only decode: left to chance, few others would be seen."""
        if self._every == 1:
            return True
        computes_prompt = any(tokens > 1 for _, _, tokens, _ in scheduled)
        waits = self._awaits_prompt and not computes_prompt and step < self._due + self._every
        if step < self._due or waits or not scheduled:
            return False
        self._due = step // self._every * self._every + self._every
        self._awaits_prompt = not self._awaits_prompt
        return True

    def _goes_on(self, batch: Batch, scheduled: list[list[Any]]) -> bool:
        tokens = batch.tokens
        for request, computed, count, _ in scheduled:
            live = self._live.get(request)
            if live is None or live.tokens != computed:
                return False
            tokens += count
        return tokens <= self._geometry.max_tokens

    def _flush(self) -> None:
        if self._batch is not None:
            self._emit(self._batch)
            self._batch = None

    def _release(self, batch: Batch, request: int) -> None:
        live = self._live.pop(request, None)
        # A request that was preempted can end while it waits: then it has no row.
        if live is not None:
            batch.leaving.append(live)
            self._free_rows.append(live.row)

    def _admit(self, request: int) -> Live:
        if not self._free_rows:
            raise InputError(
                f"layout log: more than {self._geometry.max_reqs} requests run at once (request {request})"
            )
        ids = np.empty(16, np.int64)
        live = Live(request, self._free_rows.pop(), self._identity.of(request, int(self._lengths[request])), ids)
        self._live[request] = live
        return live

    def _schedule(self, batch: Batch, request: int, computed: int, tokens: int, new: list[Any]) -> None:
        live = self._live.get(request)
        hits = 0
        if live is None or (live.tokens == 0 and request not in batch.entries):
            live = live or self._admit(request)
            hits = computed
        if new:
            ids = self._inside(batch, request, self._ids(request, new))
            # Slots are handed out to the tokens of the step; blocks follow those that are there.
            start = computed if self._geometry.slots else live.count
            live.write(start, ids)
            batch.writes.append(Write(live.row, start, ids))
        live.tokens = computed + tokens
        if -(-live.tokens // self._geometry.block_size) > live.count:
            raise InputError(
                f"layout log: step {batch.last_step}, request {request}: {live.tokens} tokens, but only {live.count} "
                f"{'slots' if self._geometry.slots else 'blocks'} are named"
            )
        known = batch.entries.get(request)
        if known is None:
            batch.entries[request] = Entry(live, computed, tokens, hits)
        else:
            known.tokens += tokens

    def _inside(self, batch: Batch, request: int, ids: Int64) -> Int64:
        """`ids`, with those that cannot be noted in the batch and replaced by the nearest that can."""
        least, most = self._geometry.reserved, self._geometry.num_blocks - 1
        if len(ids) and (ids.min() < least or ids.max() > most):
            batch.outside += [(request, int(wrong)) for wrong in ids[(ids < least) | (ids > most)]]
            return ids.clip(least, most)
        return ids

    def _ids(self, request: int, new: list[Any]) -> Int64:
        if self._geometry.slots:
            return _expand(new)
        if isinstance(new[0], list):
            raise InputError(f"allocator.groups: expected one KV-cache group, request {request} has {len(new)}")
        return np.array(new, np.int64)


def _expand(runs: list[list[int]]) -> Int64:
    """Slot ids of `[start, length]` runs."""
    return np.concatenate([np.empty(0, np.int64), *(np.arange(start, start + count) for start, count in runs)])
