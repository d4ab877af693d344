"""SGLang 0.5.22's two slot allocators and its table of request rows, with plain lists.

A *slot* holds the KV of one token; a *page* is `page_size` consecutive slots that start at a multiple of it.
Slot 0 (page 0) takes what padding writes, and is never handed out. Both allocators hand out from the head of
their free list; they differ in where freed slots go. The rule numbers are those of `naive_sglang`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field


class OutOfSlotsError(RuntimeError):
    """The engine would stop here: admission promised slots that are not there."""


@dataclass
class NaiveAllocator(ABC):
    """What both allocators share: the free list, and the holding back of frees."""

    num_slots: int
    page_size: int
    free: list[int] = field(init=False)
    """Pages (slots, where a page is one slot), next to be handed out first."""
    held: list[int] | None = field(init=False, default=None)
    """What was given back while a batch's result is being treated; None at other times (rule 27)."""

    def __post_init__(self) -> None:
        self.free = list(range(1, self.num_slots // self.page_size + 1))

    @property
    def available(self) -> int:
        """Free slots."""
        return len(self.free) * self.page_size

    def take(self, pages: int) -> list[int]:
        """The first pages of the free list."""
        if pages > len(self.free):
            raise OutOfSlotsError(f"{pages} pages wanted, {len(self.free)} free")
        taken = self.free[:pages]
        del self.free[:pages]
        return taken

    def extend(self, request_slots: Sequence[int], tokens: int) -> list[int]:
        """Slots for a request's next `tokens` tokens, given the slots of all tokens before them.

        The page that the last token left unfinished is filled first, then come whole pages, then the
        beginning of one more (rule 26).
        """
        given: list[int] = []
        for position in range(len(request_slots), len(request_slots) + tokens):
            if position % self.page_size == 0:
                given.append(self.take(1)[0] * self.page_size)
            else:
                given.append((given[-1] if given else request_slots[-1]) + 1)
        return given

    def give_back(self, slots: Sequence[int]) -> None:
        """Free the pages of a piece of a row that starts at a page's first slot, in the row's order."""
        pages = [slot // self.page_size for slot in slots[:: self.page_size]]
        if self.held is not None:
            self.held.extend(pages)
        else:
            self._return(pages)

    def hold_frees(self) -> None:
        """Begin to treat a result."""
        assert self.held is None
        self.held = []

    def apply_frees(self) -> None:
        """A result has been treated: what was given back on the way is free now, in one piece."""
        assert self.held is not None
        pages, self.held = self.held, None
        self._return(pages)

    @abstractmethod
    def _return(self, pages: list[int]) -> None:
        """Put freed pages back into the list."""


class NaiveTokenSlots(NaiveAllocator):
    """Page size 1: freed slots go to the tail of the list (rule 25)."""

    def extend(self, request_slots: Sequence[int], tokens: int) -> list[int]:
        return self.take(tokens)

    def _return(self, pages: list[int]) -> None:
        self.free.extend(pages)


class NaivePagedSlots(NaiveAllocator):
    """Page sizes above 1: freed pages go to the head of the list, as a group that keeps its order (rule 25)."""

    def _return(self, pages: list[int]) -> None:
        self.free[:0] = pages


def make_allocator(num_slots: int, page_size: int) -> NaiveAllocator:
    kind = NaiveTokenSlots if page_size == 1 else NaivePagedSlots
    return kind(num_slots, page_size)


class NaiveRows:
    """The numbers of the rows of the request-to-slot table; row 0 is for padding."""

    def __init__(self, count: int) -> None:
        self.free = list(range(1, count + 1))

    def take(self, count: int) -> list[int]:
        """The last rows of the list, in the list's order (rule 28)."""
        if count > len(self.free):
            raise OutOfSlotsError(f"{count} rows wanted, {len(self.free)} free")
        kept = len(self.free) - count
        taken = self.free[kept:]
        del self.free[kept:]
        return taken

    def give_back(self, row: int) -> None:
        self.free.append(row)
