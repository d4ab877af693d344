"""The requests that decode: one token each, every step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..allocators.block_table import BlockTable
from .request import Request

Int64 = npt.NDArray[np.int64]
Take = Callable[[int], Int64]
"""Hands out that many blocks."""


class DecodeGroup:
    """Running requests of which every step schedules exactly one token.

    Nothing is stored that advances by itself. A member has `decode_base + t` tokens in the KV cache before step `t`,
    and it needs a new block at just those steps where that is a multiple of the block size: every `block_size` steps,
    at its *phase* `-decode_base % block_size`. So members are kept by phase, in running order within one; a step
    touches only the members of its own phase, and many steps are a slice of that array.

    Arrays, in order of (phase, running order): `_members` and `_slot`, the flat index in the block table at which the
    member's next block goes. Phase `p` occupies `_bounds[p]` to `_bounds[p + 1]`.
    """

    def __init__(self, block_size: int, table: BlockTable, max_members: int) -> None:
        self._block_size = block_size
        self._table = table
        self._slot: Int64 = np.empty(max_members, np.int64)
        self._members: list[Request] = []
        self._bounds = [0] * (block_size + 1)
        self._due: Int64 = np.zeros(2 * block_size, np.int64)
        """Members of each phase, twice over, so that what is due from any phase on is a slice."""
        self._served = 0
        self.context = 0
        """Tokens in the KV cache of all members together."""

    def __len__(self) -> int:
        return len(self._members)

    def join(self, request: Request, step: int) -> None:
        """Add `request`, whose `computed` tokens are in the cache and which decodes from `step` on."""
        request.decoding = True
        request.decode_base = request.computed - step
        phase = -request.decode_base % self._block_size
        low, place = self._bounds[phase], self._bounds[phase + 1]
        if place > low and self._members[place - 1].order > request.order:
            place = bisect_right(self._members, request.order, low, place, key=_order)
        count = len(self._members)
        self._members.insert(place, request)
        self._slot[place + 1 : count + 1] = self._slot[place:count]
        self._slot[place] = request.block_start + request.held
        self._shift(phase, 1)
        self.context += request.computed

    def leave(self, request: Request, step: int) -> None:
        """Remove `request` before `step`, bringing its fields up to date."""
        phase = -request.decode_base % self._block_size
        place = self._members.index(request, self._bounds[phase], self._bounds[phase + 1])
        count = len(self._members)
        del self._members[place]
        self._slot[place : count - 1] = self._slot[place + 1 : count]
        self._shift(phase, -1)
        self._settle(request, step)
        self.context -= request.computed

    def dissolve(self, step: int) -> None:
        """Remove all members before `step`, bringing their fields up to date."""
        for request in self._members:
            self._settle(request, step)
        self._members.clear()
        self._bounds = [0] * (self._block_size + 1)
        self._due[:] = 0
        self.context = 0

    def due(self, step: int) -> int:
        """Return how many members need a block at `step`."""
        phase = step % self._block_size
        return self._bounds[phase + 1] - self._bounds[phase]

    def due_between(self, step: int, count: int) -> Int64:
        """Return how many members need a block at each of `count` steps from `step` on, int64 [count]."""
        size = self._block_size
        turn = self._due[step % size : step % size + min(count, size)]
        return turn if count <= size else np.resize(turn, count)

    def affordable(self, step: int, free: int, limit: int) -> int:
        """Return how many steps from `step` on, at most `limit`, need no more than `free` blocks in all."""
        # In every `block_size` steps each member needs one block.
        cycles, left = divmod(free, len(self._members))
        steps = cycles * self._block_size
        while steps < limit:
            left -= self.due(step + steps)
            if left < 0:
                break
            steps += 1
        return min(steps, limit)

    def serve(self, step: int, order: int, take: Take) -> None:
        """Give a block to those due members that stand before running place `order` and have none yet in `step`."""
        phase = step % self._block_size
        start, high = self._bounds[phase] + self._served, self._bounds[phase + 1]
        if high > start and self._members[high - 1].order > order:
            high = bisect_left(self._members, order, start, high, key=_order)
        self._give(start, high, take)
        self._served += max(high - start, 0)

    def advance(self, step: int, take: Take) -> None:
        """Decode `step`, giving all due members that were not served yet their block."""
        phase = step % self._block_size
        self._give(self._bounds[phase] + self._served, self._bounds[phase + 1], take)
        self._served = 0
        self.context += len(self._members)

    def _give(self, start: int, stop: int, take: Take) -> None:
        if stop > start:
            slots = self._slot[start:stop]
            self._table.flat[slots] = take(stop - start)
            slots += 1

    def advance_many(self, step: int, count: int, take: Take) -> Int64:
        """Decode `count` steps from `step` on; returns the blocks handed out, in order, int64 [any]."""
        size = self._block_size
        cycles, rest = divmod(count, size)
        first = self._bounds[step % size]
        slots = self._slot[: len(self._members)]
        runs: list[Int64] = []
        if cycles:
            turn = np.concatenate((slots[first:], slots[:first]))
            runs.append((turn + np.arange(cycles)[:, None]).ravel())
            slots += cycles
        for low, high in self._phase_runs(step, rest):
            runs.append(slots[low:high].copy())
            slots[low:high] += 1
        self.context += count * len(self._members)
        where = runs[0] if len(runs) == 1 else np.concatenate(runs)
        blocks = take(len(where))
        self._table.flat[where] = blocks
        return blocks

    def _phase_runs(self, step: int, count: int) -> list[tuple[int, int]]:
        """Slices of the member arrays that are due in `count < block_size` steps from `step` on."""
        size = self._block_size
        start = step % size
        stop = start + count
        if stop <= size:
            return [(self._bounds[start], self._bounds[stop])]
        return [(self._bounds[start], self._bounds[size]), (0, self._bounds[stop - size])]

    def _settle(self, request: Request, step: int) -> None:
        request.decoding = False
        request.computed = request.decode_base + step
        request.held = -(-request.computed // self._block_size)

    def _shift(self, phase: int, by: int) -> None:
        self._due[phase] += by
        self._due[phase + self._block_size] += by
        self._bounds[phase + 1 :] = [bound + by for bound in self._bounds[phase + 1 :]]


def _order(request: Request) -> int:
    return request.order
