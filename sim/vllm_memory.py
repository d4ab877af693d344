"""What vLLM's scheduler asks of its memory, whatever allocator that is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..allocators.base import BlockSource
from ..allocators.block_table import BlockTable
from .decode import DecodeGroup
from .request import PoolRequest
from .step import Chunk

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

NOTHING: Bool = np.empty(0, np.bool_)
NO_BLOCKS: Int64 = np.empty(0, np.int64)


class VllmMemory(ABC):
    """Moves blocks between an allocator and the rows of the block table, and keeps the requests' counts of them.

    Attributes:
        allocator: how many blocks there are; those of running requests are taken from it.
        table: rows of blocks.
        block_size: tokens a block.
        blocks: blocks held by all running requests, a shared one counted once for each.
        tokens: tokens in the KV cache or scheduled, of all running requests.
    """

    def __init__(self, allocator: BlockSource, table: BlockTable) -> None:
        self.allocator = allocator
        self.table = table
        self.block_size = allocator.block_size
        self.blocks = 0
        self.tokens = 0

    @abstractmethod
    def match(self, request: Any) -> Int64:
        """Return the cached blocks of the longest prefix of a waiting request, int64 [any].

        The last known token is always computed, so a whole block that ends with it is not taken from the cache.
        """

    @abstractmethod
    def idle(self, hits: Int64) -> Bool:
        """Which of the blocks that were just matched count as free until they are used, bool [len(hits)]."""

    def first_missing(self, request: Any, hit_blocks: int) -> int | None:
        """Return the node whose absence ends a match after `hit_blocks` blocks; None where none could be added."""
        return None

    def fits(self, request: Any, blocks: int) -> bool:
        """Return whether a waiting request can have `blocks` blocks, those that were matched and are idle included."""
        return blocks <= self.allocator.free

    @abstractmethod
    def admit(self, request: Any, hits: Int64, idle: Bool, count: int) -> None:
        """Give a waiting request a row with the matched blocks `hits`, some of them `idle`, and `count` new ones."""

    def needed(self, request: Any, tokens: int) -> int:
        """Return the blocks that a running request still needs to compute `tokens` more."""
        return -(-(request.computed + tokens) // self.block_size) - request.held

    def grow(self, request: PoolRequest, blocks: Int64) -> None:
        """Append new blocks to a request's row."""
        count = len(blocks)
        if count:
            start = request.block_start + request.held
            self.table.flat[start : start + count] = blocks
            request.held += count
            self.blocks += count

    @abstractmethod
    def register(self, request: Any, tokens: int) -> None:
        """Let others find the blocks of a running request that its first `tokens` tokens fill."""

    @abstractmethod
    def let_go(self, request: Any, tokens: int) -> None:
        """Register what the first `tokens` tokens fill, and give back all blocks and the row.

        The request's `held` and `computed` are up to date.
        """

    # -- for the scheduler's other parts

    def decode_group(self) -> DecodeGroup:
        """Return an empty group for the requests that decode."""
        return DecodeGroup(self.block_size, self.table, self.table.rows)

    def new_ids(self, chunk: Chunk[Any]) -> list[int]:
        """Return the blocks appended to a request's row by a scheduled chunk; for an admission, the whole row."""
        row, held = chunk.request.block_start, -(-(chunk.computed + chunk.tokens) // self.block_size)
        return self.table.flat[row + chunk.first_new : row + held].tolist()
