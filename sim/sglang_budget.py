"""What an extend batch may still take."""

from __future__ import annotations

from dataclasses import dataclass

from .sglang_memory import SglangMemory


@dataclass(slots=True)
class Budget:
    """SGLang's `PrefillAdder` accounts (`managers/schedule_policy.py`), in tokens.

    `reserved` is all that has been promised, the estimated future tokens of running requests included, hence a float;
    `promised` is the part of it that this batch allocates.
    """

    memory: SglangMemory
    reserved: float
    promised: int
    input_tokens: int
    chunk_tokens: int | None

    @property
    def left(self) -> float:
        """Slots that are neither in use nor reserved."""
        return self.memory.reachable_tokens - self.reserved

    @property
    def out_of_memory(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0 or self.memory.reachable_tokens - self.promised <= 0

    @property
    def spent(self) -> bool:
        """Whether any account is empty."""
        chunk_spent = self.chunk_tokens is not None and self.chunk_tokens <= 0
        return self.out_of_memory or self.input_tokens <= 0 or chunk_spent

    def charge(self, extend: int, new_tokens: int) -> None:
        """Take an extend of so many tokens, after which the request may generate `new_tokens`."""
        page = self.memory.page_size
        extend = self.memory.ceil(extend)
        self.reserved += extend + page + new_tokens
        self.promised += extend + page
        self.input_tokens -= extend
        if self.chunk_tokens is not None:
            self.chunk_tokens -= extend
