"""What a trace holds, in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .identity import prompt_nodes
from .trace import Int64, Trace

_PERCENTILES = (50, 90, 95, 99)


def describe(trace: Trace) -> dict[str, Any]:
    """Counts, rates, lengths and prefix sharing of a trace, as plain numbers; times in seconds."""
    n, span = len(trace), float(trace.arrival_ns[-1] - trace.arrival_ns[0]) / 1e9
    prompt, output = (
        int(trace.prompt_tokens.sum(dtype=np.int64)),
        int(trace.output_tokens.sum(dtype=np.int64)),
    )
    rates = (n, prompt, output) if span > 0 else ()
    found: dict[str, Any] = {
        "trace": trace.name,
        "requests": n,
        "first_arrival_s": float(trace.arrival_ns[0]) / 1e9,
        "span_s": span,
    }
    for name, total in zip(("requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s"), rates, strict=False):
        found[name] = total / span
    found |= {
        "prompt_tokens": prompt,
        "output_tokens": output,
        "prompt_length": _lengths(trace.prompt_tokens),
        "output_length": _lengths(trace.output_tokens),
        "granularity": trace.granularity,
    }
    if trace.granularity:
        found["distinct_prefixes"] = len(np.unique(prompt_nodes(trace)[0]))
        found["infinite_cache_hit_share"] = int(hit_tokens(trace).sum()) / prompt
    if trace.session is not None:
        found["sessions"] = int(trace.session.max()) + 1
    if trace.parent is not None:
        found["linked_turns"] = int((trace.parent >= 0).sum())
    if trace.kind is not None:
        counts = np.bincount(trace.kind[trace.kind >= 0], minlength=len(trace.kind_names))
        found["kinds"] = dict(zip(trace.kind_names, counts.tolist(), strict=True))
    return found | {"notes": list(trace.notes)}


def hit_tokens(trace: Trace) -> Int64:
    """Prompt tokens of each request that an infinite cache holds at its arrival, int64 [n].

    The cache is filled at once by whatever arrived before, answers included as far as the trace knows them.
    """
    hits = np.zeros(len(trace), dtype=np.int64)
    if trace.nodes is None or trace.node_ptr is None or trace.covered_tokens is None:
        return hits
    counts = np.diff(trace.node_ptr)
    row = np.repeat(np.arange(len(trace)), counts)
    start = (np.arange(len(trace.nodes)) - trace.node_ptr[row]) * trace.granularity
    held = np.clip(trace.covered_tokens[row] - start, 0, trace.granularity)
    asked = np.clip(trace.prompt_tokens[row] - start, 0, trace.granularity)
    np.add.at(hits, row, np.minimum(asked, _held_before(trace.nodes, held, trace.granularity)))
    return hits


def _held_before(nodes: npt.NDArray[np.int32], held: Int64, most: int) -> Int64:
    """The largest `held` among earlier entries of the same node, 0 where there is none."""
    order = np.argsort(nodes, kind="stable")
    by_node = nodes[order].astype(np.int64) * (most + 1)
    # Larger nodes have larger keys, so one running maximum serves all nodes.
    best = np.maximum.accumulate(by_node + held[order]) - by_node
    before = np.zeros_like(best)
    before[1:] = np.where(by_node[1:] == by_node[:-1], best[:-1], 0)
    result = np.empty_like(before)
    result[order] = before
    return result


def _lengths(tokens: npt.NDArray[np.int32]) -> dict[str, float]:
    values = {f"p{p}": float(v) for p, v in zip(_PERCENTILES, np.percentile(tokens, _PERCENTILES), strict=True)}
    return {"mean": float(tokens.mean()), **values, "max": int(tokens.max())}


def arrivals_plot(trace: Trace, width: int = 60) -> str:
    """Requests and prompt tokens over time, one line of bars each."""
    span = int(trace.arrival_ns[-1] - trace.arrival_ns[0]) + 1
    slot = ((trace.arrival_ns - trace.arrival_ns[0]).astype(np.float64) / span * width).astype(np.int64)
    lines: list[str] = []
    for name, weights in (("requests", None), ("prompt tokens", trace.prompt_tokens)):
        bins = np.bincount(slot, weights=weights, minlength=width)[:width]
        unit = span / width / 1e9
        lines.append(f"{name:>13} {_bars(bins)} at most {bins.max() / unit:,.4g}/s")
    return "\n".join(lines)


def _bars(values: npt.NDArray[np.floating[Any]] | Int64) -> str:
    top = max(float(values.max()), 1e-300)
    return "".join(" ▁▂▃▄▅▆▇█"[int(np.ceil(value / top * 8))] for value in values)
