"""`curve`: prefix-cache hit rate against KV capacity, for every capacity from one pass over a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..traces.errors import InputError
from ..traces.trace import Trace
from .curve_belady import belady_hits
from .curve_distances import stack_distances
from .curve_references import References, references

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

_MOST_DEFAULT_CAPACITIES = 12


@dataclass(frozen=True)
class HitCurve:
    """Hits of an LRU cache at every capacity (k references that repeat an earlier one)."""

    distances: Int64
    """int64 [k], ascending: the least capacity, in blocks, at which each of them hits."""
    blocks: Int64
    """int64 [k + 1]: blocks hit by the first so many of them."""
    tokens: Int64
    """int64 [k + 1]: prompt tokens in those blocks."""
    asked_blocks: int
    asked_tokens: int

    def at(self, capacity_blocks: Sequence[int] | Int64) -> tuple[Float64, Float64]:
        """Return hit rates at capacities in blocks: float64 [c] of blocks and float64 [c] of tokens, as fractions."""
        reached = np.searchsorted(self.distances, np.asarray(capacity_blocks), side="right")
        return self.blocks[reached] / self.asked_blocks, self.tokens[reached] / self.asked_tokens


def hit_curve(stream: References) -> HitCurve:
    """Return the LRU hits of a stream of references at every capacity."""
    again, distances = stack_distances(stream.segment, stream.blocks)
    asked = stream.asked[again]
    again, distances = again[asked], distances[asked]
    order = np.argsort(distances)
    blocks, tokens = (
        np.concatenate(([0], np.cumsum(column[again[order]]))) for column in (stream.blocks, stream.tokens)
    )
    return HitCurve(distances[order], blocks, tokens, stream.asked_blocks, stream.asked_tokens)


def curve(
    trace: Trace,
    *,
    block_size: int = 16,
    capacities: Sequence[int] | None = None,
    bytes_per_token: float | None = None,
    belady: bool = True,
) -> dict[str, Any]:
    """Return the prefix-cache hit rate of `trace` against KV capacity.

    Two orders of references are offered. Plain LRU uses each prompt's blocks from the first to the last. Leaf-first
    uses them from the last to the first, as engines give up the blocks of a request that ends, so that a prefix is
    never dropped before what builds on it. In both, each request is looked up and stored at its arrival; an engine
    differs where running requests hold memory, where generated tokens fill it, and where requests overlap.

    Args:
        trace: from `load_trace`.
        block_size: tokens a block; a divisor or a multiple of what the trace's block ids stand for.
        capacities: in blocks; powers of two up to where the ceiling is reached if None.
        bytes_per_token: of the KV cache, to state capacities in GiB as well.
        belady: whether to work out the optimum at each capacity, which takes most of the time.

    Returns:
        `block_size`, `references` (blocks of all prompts), `distinct_blocks`, lists over the capacities
        (`capacity_blocks`, `capacity_tokens`, `capacity_gib`, hit rates as fractions by block and by token in either
        order, `belady_per_block`, `belady_per_token`) and `ceiling_per_block`, `ceiling_per_token` of an infinite
        cache. Ready for JSON.

    Raises:
        InputError: the block size does not go with the trace's, or a capacity below 1.
    """
    if capacities is not None and min(capacities, default=0) < 1:
        raise InputError("--capacities: expected whole numbers of at least 1 (blocks)")
    stream = references(trace, block_size)
    plain, leaf_first = hit_curve(stream), hit_curve(stream.leaf_first())
    sizes = list(capacities) if capacities is not None else _sensible(plain)
    per_block, per_token = plain.at(sizes)
    leaf_block, leaf_token = leaf_first.at(sizes)
    result = {
        "trace": trace.name,
        "block_size": block_size,
        "references": plain.asked_blocks,
        "distinct_blocks": distinct_blocks(stream),
        "prompt_tokens": plain.asked_tokens,
        "capacity_blocks": sizes,
        "capacity_tokens": [size * block_size for size in sizes],
        "hit_rate_per_block": per_block.tolist(),
        "hit_rate_per_token": per_token.tolist(),
        "leaf_first_per_block": leaf_block.tolist(),
        "leaf_first_per_token": leaf_token.tolist(),
        "ceiling_per_block": float(plain.blocks[-1] / plain.asked_blocks),
        "ceiling_per_token": float(plain.tokens[-1] / plain.asked_tokens),
    }
    if bytes_per_token is not None:
        result["capacity_gib"] = [size * block_size * bytes_per_token / 2**30 for size in sizes]
    return result | (_optimum(stream, sizes) if belady else {})


def distinct_blocks(stream: References) -> int:
    """Return how many different blocks a stream of references names, known answers' included."""
    _, first = np.unique(stream.segment, return_index=True)
    return int(stream.blocks[first].sum())


def _sensible(plain: HitCurve) -> list[int]:
    """Powers of two up to the first at which all hits are had."""
    largest = int(plain.distances[-1]) if len(plain.distances) else 1
    last = max(largest - 1, 1).bit_length()
    return [1 << power for power in range(max(0, last - _MOST_DEFAULT_CAPACITIES + 1), last + 1)]


def _optimum(stream: References, sizes: Sequence[int]) -> dict[str, list[float]]:
    per_block: list[float] = []
    per_token: list[float] = []
    for size in sizes:
        hits = np.where(stream.asked, belady_hits(stream, size), 0)
        per_block.append(float(hits.sum() / stream.asked_blocks))
        # Of a segment that hits in part, all blocks count alike.
        per_token.append(float((hits / stream.blocks * stream.tokens).sum() / stream.asked_tokens))
    return {"belady_per_block": per_block, "belady_per_token": per_token}
