"""One batch of SGLang's scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from .request import TreeRequest
from .step import Step


@dataclass(slots=True)
class TreeStep(Step[TreeRequest]):
    """A launched batch: `extend` computes prompts or chunks of them (`chunks`), `decode` one token of each running
    request, `mixed` both."""

    kind: str = "decode"
    chunked: TreeRequest | None = None
    """The request in the middle of its prompt when the batch was formed."""
    prefill_only: bool = False
    """Whether no request in it may generate more than the first token."""

    @property
    def plain(self) -> bool:
        """Whether the result changes nothing that scheduling depends on."""
        return self.kind == "decode" and not self.finishing
