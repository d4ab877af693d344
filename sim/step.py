"""One step of the engine: what was scheduled, and what its result will bring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from .request import Request

R = TypeVar("R", bound=Request)


class Chunk(NamedTuple, Generic[R]):
    """Scheduled tokens of one request."""

    request: R
    computed: int
    """Tokens in the KV cache before."""
    tokens: int
    """Scheduled tokens."""
    first_new: int
    """Where the blocks begin in the request's row that the step has to be told of: the new ones, or all of them for
    a request admitted in this step."""


@dataclass(slots=True)
class Step(Generic[R]):
    """A scheduled step. Members of the decode group are counted, not listed."""

    number: int
    time_ns: int
    """When it was scheduled; under asynchronous scheduling it may start later."""
    duration_ns: int = 0
    end_ns: int = 0
    decodes: int = 0
    """Requests that take one token at the end of their sequence."""
    chunks: list[Chunk[R]] = field(default_factory=list)
    """All other scheduled requests, in the order of scheduling."""
    preempted: list[R] = field(default_factory=list)
    firsts: list[R] = field(default_factory=list)
    """Requests whose first token the result brings."""
    finishing: list[R] = field(default_factory=list)
    """Requests whose last token the result brings, in the order of scheduling."""

    brings: int = 0
    """Requests, besides the decoding ones, of which the result brings a token."""
    evicted: int = 0
    """Cached blocks whose content its scheduling dropped (set for listeners)."""
    free: int = 0
    """Blocks free right after its scheduling (set for listeners)."""

    @property
    def plain(self) -> bool:
        """Whether the result changes nothing that scheduling depends on."""
        return not (self.firsts or self.finishing)
