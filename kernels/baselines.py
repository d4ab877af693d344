"""What a user would call instead: torch's attention on gathered history, FlashInfer, FlashAttention."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
import importlib.util
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .cache_layout import KVCache
from .metadata import StepMetadata

Call = Callable[[], object]


def torch_attention(query: Tensor, key: Tensor, value: Tensor, step: StepMetadata, scale: float) -> Call:
    """`scaled_dot_product_attention`, request by request, on history that lies gathered.

    Args:
        query: [num_tokens, query_heads, head_size].
        key: [all tokens of all requests, num_kv_heads, head_size].
        value: the same.
        step: whose `seq_lens` and `query_start_loc` are used.
        scale: of the scores.
    """
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention

    starts = step.query_start_loc.tolist()
    parts = []
    begin = 0
    for request, length in enumerate(step.seq_lens.tolist()):
        q = query[starts[request] : starts[request + 1]].transpose(0, 1)[None]
        k, v = (x[begin : begin + length].transpose(0, 1)[None] for x in (key, value))
        # A mask that torch knows to be causal, so that it may choose its fastest implementation.
        mask = None if q.shape[2] == 1 else causal_lower_right(q.shape[2], length)
        parts.append((q, k, v, mask))
        begin += length

    def call() -> None:
        for q, k, v, mask in parts:
            scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)

    return call


def libraries(query: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Iterator[tuple[str, Call]]:
    """Decode attention of the libraries that are installed and take this cache, by name."""
    if importlib.util.find_spec("flashinfer") is not None and cache.k.is_contiguous():
        yield "flashinfer", _flashinfer(query, cache, step, scale)
    if importlib.util.find_spec("flash_attn") is not None and cache.block_size % 256 == 0:
        yield "flash_attn", _flash_attention(query, cache, step, scale)


def _flashinfer(query: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Call:
    import flashinfer  # pyright: ignore[reportMissingImports]

    size, device = cache.block_size, query.device
    counts = (step.seq_lens + size - 1) // size
    indptr = torch.zeros(step.num_reqs + 1, dtype=torch.int32, device=device)
    indptr[1:] = counts.cumsum(0)
    ids = torch.cat([step.block_table[row, :count] for row, count in enumerate(counts.tolist())])
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    wrapper.plan(
        indptr,
        ids,
        (step.seq_lens - 1) % size + 1,
        query.shape[1],
        cache.kv_heads,
        cache.head_size,
        size,
        q_data_type=query.dtype,
        kv_data_type=cache.k.dtype,
        sm_scale=scale,
    )
    return lambda: wrapper.run(query, (cache.k, cache.v))


def _flash_attention(query: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Call:
    from flash_attn import flash_attn_with_kvcache  # pyright: ignore[reportMissingImports]

    table = step.block_table
    return lambda: flash_attn_with_kvcache(
        query[:, None],
        cache.k,
        cache.v,
        cache_seqlens=step.seq_lens,
        block_table=table,
        softmax_scale=scale,
        causal=True,
    )
