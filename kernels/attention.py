"""Attention over gathered history in plain torch: the references of the paged kernels."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
import torch
from torch import Tensor

from .cache_layout import KVCache
from .gather_kv import history_slots
from .metadata import StepMetadata


def attention_reference(
    query: Tensor, cache: KVCache, step: StepMetadata, scale: float, dtype: torch.dtype = torch.float64
) -> Tensor:
    """softmax(q k^T * scale) v of every scheduled token over its request's tokens up to itself.

    Args:
        query: [num_tokens, query_heads, head_size].
        cache: paged K and V, those of the step written.
        step: who has which tokens and blocks.
        scale: of the scores, usually `head_size ** -0.5`.
        dtype: that all is computed in: float64 gives what the kernels are held against.

    Returns:
        [num_tokens, query_heads, head_size] of `dtype`.
    """
    return _over_requests(query, cache, step, dtype, lambda q, k, v, mask: _exact(q, k, v, mask, scale))


def attention_same_precision(query: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Tensor:
    """The same by torch's own fused attention in the query's precision: what sets the kernels' error budget."""
    from torch.nn.functional import scaled_dot_product_attention

    return _over_requests(
        query, cache, step, query.dtype, lambda q, k, v, mask: scaled_dot_product_attention(q, k, v, mask, scale=scale)
    )


def relative_error(out: Tensor, exact: Tensor) -> float:
    """||out - exact|| / ||exact||, NaN where `out` has one."""
    norm = torch.linalg.vector_norm(exact)
    return float(torch.linalg.vector_norm(out.double() - exact) / norm) if len(exact) else 0.0


def within_budget(error: float, torch_error: float, dtype: torch.dtype) -> bool:
    """Whether an error is at most twice that of the same-precision torch computation.

    Where torch happens to be exact (one token: its V), half a unit of rounding is let pass. NaN never passes.
    """
    return error <= 2 * torch_error + torch.finfo(dtype).eps / 2


def _over_requests(query: Tensor, cache: KVCache, step: StepMetadata, dtype: torch.dtype, attend) -> Tensor:
    out = torch.zeros(query.shape, dtype=dtype, device=query.device)
    offsets = torch.zeros(step.num_reqs + 1, dtype=torch.int32, device=query.device)
    offsets[1:] = step.seq_lens.cumsum(0)
    slots = history_slots(step.block_table, step.rows, offsets, cache.block_size)
    starts, lengths = step.query_start_loc.tolist(), step.seq_lens.tolist()
    group = query.shape[1] // cache.kv_heads
    begin = 0
    for req, length in enumerate(lengths):
        count = starts[req + 1] - starts[req]
        if count and length:
            k, v = (x.to(dtype).repeat_interleave(group, 1) for x in cache.rows(slots[begin : begin + length]))
            q = query[starts[req] : starts[req + 1]].to(dtype)
            out[starts[req] : starts[req + 1]] = attend(
                q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), causal_mask(count, length, query.device)
            ).transpose(0, 1)
        begin += length
    return out


def causal_mask(count: int, length: int, device: torch.device) -> Tensor:
    """Bool [count, length]: the last `count` of `length` tokens see all before them and themselves."""
    token = torch.arange(length - count, length, device=device)
    return torch.arange(length, device=device) <= token[:, None]


def _exact(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    scores = (q @ k.transpose(1, 2) * scale).masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1) @ v
