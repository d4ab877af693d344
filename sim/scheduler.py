"""What the engine, which has the clock, asks of a scheduler, which has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .decode import DecodeGroup
from .meter import MeterState
from .request import Request
from .step import Chunk

Int64 = npt.NDArray[np.int64]


class Scheduler(Protocol):
    """An engine's scheduler with its memory."""

    step_class: Any
    """Makes its steps: `step_class(number, time_ns, duration_ns, end_ns, decodes)` is a plain one."""
    aborted: list[Request]
    """Requests given up since the caller last looked."""
    next_step: int
    """Number of the step that will be scheduled next."""
    decoding: DecodeGroup

    @property
    def waiting(self) -> Sized:
        """Requests that wait to be admitted."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether any request is running or waiting."""
        ...

    def add(self, request: Any) -> None:
        """Queue a request that arrived."""
        ...

    def schedule(self, now_ns: int) -> Any:
        """Schedule a step at `now_ns`, its duration left to the caller; None where there is nothing to launch.

        `complete` must follow."""
        ...

    def load(self, step: Any) -> tuple[int, int, int]:
        """Return what a step's time depends on: prefill tokens, decoding requests, and tokens in the KV cache of all
        scheduled requests after it."""
        ...

    def complete(self, step: Any) -> None:
        """After a step was scheduled and looked at: sort out who is where now."""
        ...

    def treat(self, step: Any, now_ns: int) -> None:
        """Treat a step's result, which came at `now_ns`: first tokens are seen, finished requests leave."""
        ...

    def idle(self) -> bool:
        """Called when nothing was launched and no result is out; whether trying again at once may help."""
        ...

    def only_decodes(self) -> bool:
        """Whether the next step seems to be a plain one. Cheap, and may err."""
        ...

    def plain_steps(self, limit: int) -> int:
        """Return how many of the next `limit` steps, at most, will only decode all of the decode group.

        It holds as long as nobody arrives. The last of them may bring last tokens."""
        ...

    def due_between(self, count: int) -> Int64:
        """Return how many blocks each of the next `count` plain steps takes, int64 [count]."""
        ...

    def decode_many(self, count: int, take: Callable[[int], Int64]) -> None:
        """Schedule the next `count` steps, which are plain; `complete` must follow with the last of them."""
        ...

    def take(self, count: int) -> Int64:
        """Hand out free blocks (pages), int64 [count]."""
        ...

    @property
    def free(self) -> int:
        """Free blocks (pages)."""
        ...

    @property
    def evicted(self) -> int:
        """Cached blocks (pages) whose content was dropped so far."""
        ...

    def state(self) -> MeterState:
        """Return what the meter counts."""
        ...

    def cached(self) -> int:
        """Return the blocks (pages) that hold a prefix and that nobody uses."""
        ...

    def entries(self, step: Any) -> Sequence[Chunk[Any]]:
        """Return all that a step schedules, in the engine's order; to be called before `complete`."""
        ...

    def new_ids(self, chunk: Any) -> list[Any]:
        """Return the ids that a step has to be told of for one of its entries, as the layout log has them."""
        ...
