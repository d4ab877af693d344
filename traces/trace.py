"""The one in-memory form of a request trace: columns, whatever the file format was."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Trace:
    """Requests in arrival order, one entry a request in every column (n requests).

    Prefix identity is kept as *nodes*: node `v` stands for one whole prefix, up to and including the block of
    `granularity` tokens that it ends. Request `i` has the nodes `nodes[node_ptr[i]:node_ptr[i + 1]]`; they cover its
    first `covered_tokens[i]` tokens, the last of them possibly only in part. Two requests share a prefix exactly as
    far as their nodes are equal. Where the answer's tokens are known (token ids, linked turns), the nodes go on past
    the prompt.
    """

    name: str
    """Where it came from: a path or a built-in name."""
    arrival_ns: Int64
    """int64 [n], nanoseconds, not decreasing."""
    prompt_tokens: Int32
    """int32 [n], at least 1."""
    output_tokens: Int32
    """int32 [n], generated tokens, at least 1."""
    granularity: int = 0
    """Tokens a node stands for; 0: the trace has no prefix identity, and every prompt is unlike all others."""
    node_ptr: Int64 | None = None
    """int64 [n + 1]; None where `granularity` is 0."""
    nodes: Int32 | None = None
    """int32 [node_ptr[n]], dense numbers from 0."""
    num_nodes: int = 0
    """Distinct nodes: every value in `nodes` is below it."""
    covered_tokens: Int32 | None = None
    """int32 [n]: tokens of prompt (and answer) whose identity the nodes give; at least the prompt."""
    session: Int32 | None = None
    """int32 [n]: dense session number, -1 for none."""
    parent: Int32 | None = None
    """int32 [n]: row of the turn before this one, -1 for none."""
    think_ns: Int64 | None = None
    """int64 [n], ns between the parent's end and this arrival, where the format states it; else -1."""
    priority: Int32 | None = None
    """int32 [n]: smaller is served first (as in vLLM)."""
    kind: Int32 | None = None
    """int32 [n]: class of the request, an index into `kind_names`, -1 for none."""
    kind_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What reading did to the data (rows sorted, skipped, left out), one sentence each."""

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def head(self, n: int) -> Trace:
        """The first `n` requests in arrival order (all of them where there are fewer); arrays are views."""
        if n >= len(self):
            return self
        cut: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray) and field.name not in ("node_ptr", "nodes"):
                cut[field.name] = value[:n]
        if self.node_ptr is not None and self.nodes is not None:
            cut["node_ptr"] = self.node_ptr[: n + 1]
            cut["nodes"] = self.nodes[: int(self.node_ptr[n])]
        return replace(self, **cut)  # pyright: ignore[reportArgumentType]
