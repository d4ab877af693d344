"""SGLang's free slots: single ones, or pages of several."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .ring import Ring

Int64 = npt.NDArray[np.int64]


class SlotPool:
    """Free pages of `page_size` slots, in the order in which they will be handed out.

    As in SGLang 0.5.22 (`mem_cache/allocator/token.py`, `paged.py`): page 0 is never handed out; pages of one slot
    are given back to the tail of the list, larger ones to its head, as a group. Between `hold` and `apply` what is
    given back is only collected, and goes back in one piece at the end.

    Attributes:
        free: pages that can be handed out.
        capacity: all of them.
    """

    def __init__(self, num_slots: int, page_size: int) -> None:
        """Make a pool of `num_slots // page_size` free pages, numbered from 1."""
        self.page_size = page_size
        self.capacity = self.free = num_slots // page_size
        self._list = Ring(np.arange(1, self.capacity + 1))
        self._held: list[Int64] | None = None

    def take(self, count: int) -> Int64:
        """Hand out `count` pages, int64 [count]. `count <= free` is the caller's to check."""
        self.free -= count
        return self._list.pop(count)

    def give_back(self, pages: Int64) -> None:
        """Take back `pages` (int64 [k]), now or, while holding, later."""
        if not len(pages):
            return
        if self._held is not None:
            self._held.append(pages.copy())
        else:
            self._return(pages)

    def hold(self) -> None:
        """From now on only collect what is given back."""
        self._held = []

    def apply(self) -> None:
        """Free what was collected."""
        held, self._held = self._held, None
        if held:
            self._return(np.concatenate(held))

    def _return(self, pages: Int64) -> None:
        if self.page_size == 1:
            self._list.append(pages)
        else:
            self._list.prepend(pages)
        self.free += len(pages)

    def free_order(self) -> Int64:
        """Return the free pages in the order in which they would be handed out, int64 [free]."""
        return self._list.order()
