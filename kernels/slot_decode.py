"""Decode attention that reads K and V by rows of slot ids, as SGLang does."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from torch import Tensor

from .cache_layout import slot_cache
from .metadata import StepMetadata
from .paged_decode import paged_decode, paged_decode_reference


def slot_decode(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    step: StepMetadata,
    out: Tensor,
    scale: float,
    splits: int | None = None,
) -> None:
    """Attend with one query a request to all its tokens: the kernel of `paged_decode` with blocks of one token.

    Args:
        query: [num_reqs, query_heads, head_size], fp32, fp16 or bf16.
        k_buffer: [slots + page_size, num_kv_heads, head_size] of the same dtype.
        v_buffer: the same.
        step: `block_table` is `req_to_token`, int32 [max_reqs, max_context_len]; `rows` names each request's row.
        out: as `query`; every element is written.
        scale: of the scores.
        splits: parts of the KV length; None chooses.

    Raises:
        TypeError, ValueError: tensors that do not go together.
    """
    paged_decode(query, slot_cache(k_buffer, v_buffer), step, out, scale, splits)


def slot_decode_reference(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    step: StepMetadata,
    out: Tensor,
    scale: float,
    splits: int | None = None,
) -> None:
    """The same in plain torch, computed in float64."""
    paged_decode_reference(query, slot_cache(k_buffer, v_buffer), step, out, scale, splits)
