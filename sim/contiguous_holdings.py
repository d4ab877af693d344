"""What running requests hold where each has one region for all it may become, under vLLM's scheduler."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..allocators.block_table import BlockTable
from ..allocators.contiguous import ContiguousPool
from .decode import DecodeGroup, Take
from .request import ContiguousRequest, Request
from .step import Chunk
from .vllm_memory import NO_BLOCKS, NOTHING, VllmMemory

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class ContiguousHoldings(VllmMemory):
    """Regions reserved at admission, whole, and given back at the end.

    The request at the head of the line waits until a piece is large enough. Nobody is ever preempted, for a region
    holds all that its request may become; so the watermark, which keeps room for growth, keeps none here.
    """

    def __init__(self, pool: ContiguousPool, table: BlockTable) -> None:
        """Hold nothing; of `table` only the number of rows counts, since a region needs no list of blocks."""
        super().__init__(pool, table)
        self.pool = pool
        self.fragmented: set[int] = set()
        """Requests that could not be admitted at some time although, in all, enough blocks were free."""

    def match(self, request: ContiguousRequest) -> Int64:
        return NO_BLOCKS

    def idle(self, hits: Int64) -> Bool:
        return NOTHING

    def fits(self, request: ContiguousRequest, blocks: int) -> bool:
        """Return whether some free piece holds the request's region, however many blocks it needs now."""
        if request.reserved <= self.pool.largest:
            return True
        if request.reserved <= self.pool.free:
            self.fragmented.add(request.index)
        return False

    def admit(self, request: ContiguousRequest, hits: Int64, idle: Bool, count: int) -> None:
        request.region = self.pool.reserve(request.reserved)
        request.held = request.reserved
        self.blocks += request.held

    def needed(self, request: ContiguousRequest, tokens: int) -> int:
        return 0

    def register(self, request: ContiguousRequest, tokens: int) -> None:
        """Nothing: no prefix is found again."""

    def let_go(self, request: ContiguousRequest, tokens: int) -> None:
        self.pool.give_back(request.region, request.held)
        self.blocks -= request.held
        self.tokens -= request.computed
        request.held = 0

    def decode_group(self) -> DecodeGroup:
        return _Decodes(self.table)

    def new_ids(self, chunk: Chunk[ContiguousRequest]) -> list[int]:
        """Return the blocks of the whole region for an admission, and none later on."""
        request = chunk.request
        return [] if chunk.first_new else list(range(request.region, request.region + request.reserved))


class _Decodes(DecodeGroup):
    """Decoding requests none of which ever needs a block."""

    def __init__(self, table: BlockTable) -> None:
        # With blocks of one token there is one phase, in which all stand in running order.
        super().__init__(1, table, table.rows)

    def due(self, step: int) -> int:
        return 0

    def due_between(self, step: int, count: int) -> Int64:
        return np.zeros(count, np.int64)

    def affordable(self, step: int, free: int, limit: int) -> int:
        return limit

    def advance_many(self, step: int, count: int, take: Take) -> Int64:
        self.context += count * len(self)
        return take(0)

    def _give(self, start: int, stop: int, take: Take) -> None:
        pass

    def _settle(self, request: Request, step: int) -> None:
        request.decoding = False
        request.computed = request.decode_base + step
