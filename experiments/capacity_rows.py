"""What fits: one row for each model, GPU and tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..traces.trace import Trace
from .capacity_backends import preferred_block_size
from .capacity_gpu import Gpu
from .capacity_memory import (
    VLLM_UTILIZATION,
    Deployment,
    Groups,
    kv_groups,
    kv_memory,
    mem_fraction_static,
    reserve_bytes,
    token_bytes,
    weight_bytes,
)
from .capacity_model import FULL, Model
from .capacity_settings import explain_no_room, fitting_blocks

_GIB = 1 << 30


@dataclass(frozen=True)
class Lengths:
    """Tokens of a trace's requests at their end, prompt and answer."""

    mean: int
    p95: int
    longest: int


def lengths(trace: Trace) -> Lengths:
    """Return how long the requests of `trace` get."""
    tokens = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    return Lengths(round(float(tokens.mean())), round(float(np.percentile(tokens, 95))), int(tokens.max()))


def capacity_row(
    model: Model, gpu: Gpu, laid: Deployment, block_size: int | None, trace: Lengths | None
) -> dict[str, Any]:
    """Return what of `model` fits on `gpu`; bytes are of one GPU but for `bytes_per_token`, which is of all.

    A model with sliding windows is given blocks by group, as vLLM does; `tokens` then counts what one request, with
    all of its layers, can have.
    """
    size = block_size or preferred_block_size(laid.engine, None)
    sglang = laid.engine == "sglang"
    groups = kv_groups(model, laid.pipeline_parallel)
    if sglang:
        # Its pools hold all layers of a token together.
        groups = Groups(-(-model.layers // laid.pipeline_parallel), (FULL,))
    blocks = max(fitting_blocks(model, gpu, laid, size, groups.layers * laid.pipeline_parallel), 0)
    # The null block of vLLM holds nothing.
    usable = blocks if sglang else max(blocks - 1, 0)
    row: dict[str, Any] = {
        "model": model.name,
        "gpu": gpu.name,
        "engine": laid.engine,
        "tensor_parallel": laid.tensor_parallel,
        "pipeline_parallel": laid.pipeline_parallel,
        "bytes_per_token": token_bytes(model, laid),
        "weight_bytes": round(weight_bytes(model, laid)),
        "reserve_bytes": None if sglang else round(reserve_bytes(model, laid)),
        "share": _share(model, gpu, laid),
        "kv_bytes": max(round(kv_memory(model, gpu, laid)), 0),
        "block_size": size,
        "groups": ["full" if window == FULL else f"swa_{window}" for window in groups.windows],
        "num_blocks": blocks,
        "tokens": usable * size // max(_full_groups(groups), 1),
        "problem": explain_no_room(model, gpu, laid) if usable < 1 else None,
    }
    if trace is not None:
        row["requests"] = {
            name: concurrent(groups, usable, size, tokens, trace.longest)
            for name, tokens in (("mean", trace.mean), ("p95", trace.p95))
        }
    return row


def concurrent(groups: Groups, blocks: int, block_size: int, tokens: int, longest: int) -> dict[str, int]:
    """Return how many requests of `tokens` tokens fit at once under each allocator, tail waste included.

    `block_pool` and `paged_slots` give whole blocks or pages; `token_slots` one slot a token; `contiguous` reserves
    for each request as much as the longest one needs, as engines did before paging.
    """
    slots = blocks * block_size // len(groups.windows)
    return {
        "block_pool": blocks // max(groups.blocks(tokens, block_size), 1),
        "paged_slots": slots // (-(-tokens // block_size) * block_size),
        "token_slots": slots // tokens,
        "contiguous": slots // longest,
    }


def with_engine_defaults(laid: Deployment, gpu: Gpu) -> Deployment:
    """Return the deployment with what a server of vLLM 0.32.0 takes by GPU memory, where nothing is said.

    160 GiB and more: 16,384 tokens a step and 1,024 requests; 70 GiB and more, A100 apart: 8,192 and 1,024; else
    2,048 and 256.
    """
    gib = gpu.memory_bytes / _GIB
    if gib >= 160:
        tokens, seqs = 16384, 1024
    elif gib >= 70 and "A100" not in gpu.name:
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    return replace(laid, max_num_batched_tokens=tokens, max_num_seqs=seqs)


def _full_groups(groups: Groups) -> int:
    """Groups that a long request keeps filling; where all have windows, all of them."""
    return groups.windows.count(FULL) or len(groups.windows)


def _share(model: Model, gpu: Gpu, laid: Deployment) -> float:
    """`mem_fraction_static` or `gpu_memory_utilization`, whichever the engine has."""
    if laid.engine == "sglang":
        return laid.mem_fraction_static or mem_fraction_static(model, gpu, laid)
    return laid.gpu_memory_utilization or VLLM_UTILIZATION
