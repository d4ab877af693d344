"""How much of the KV cache fits: bytes of a block, what the weights and the engine leave, blocks."""

from __future__ import annotations

from dataclasses import dataclass

from .capacity_gpu import MIB, Gpu
from .capacity_model import FULL, Model

VLLM_UTILIZATION = 0.92
"""`gpu_memory_utilization` of vLLM 0.32.0 (vllm/config/cache.py)."""

_CONTEXT_BYTES = 300 * MIB
"""CUDA context growth, cuBLAS workspaces and the like: vLLM logs it as non_torch_memory, 0.05 to 0.3 GiB on one GPU."""
_GRAPH_BYTES = 512 * MIB
"""CUDA graphs: vLLM logs 0.3 to 1 GiB ("Graph capturing finished ... took") and since 0.21 reserves them."""


@dataclass(frozen=True)
class Deployment:
    """How a model is laid on GPUs and what the engine is told."""

    engine: str = "vllm"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    kv_cache_dtype: str = "auto"
    """auto: 16 bits; fp8: 8 bits."""
    gpu_memory_utilization: float | None = None
    mem_fraction_static: float | None = None
    reserve_gib: float | None = None
    """What the engine keeps for activations, graphs and context, in place of the estimate (vLLM)."""
    max_num_batched_tokens: int = 8192
    """Tokens of the largest step: activations grow with it."""
    max_num_seqs: int = 256
    chunked_prefill_size: int | None = None

    @property
    def kv_bytes(self) -> int:
        """Bytes of a value in the cache."""
        return 1 if self.kv_cache_dtype.startswith("fp8") else 2

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True)
class Groups:
    """KV-cache groups of a model as vLLM forms them: all have the same number of layers and share one pool."""

    layers: int
    """Of a group, on one pipeline stage."""
    windows: tuple[int, ...]
    """One entry a group; `FULL` where its layers see everything."""

    def blocks(self, tokens: int, block_size: int) -> int:
        """Return the blocks of a request with `tokens` tokens in the cache.

        A window of w tokens needs blocks for w tokens and for one partly left behind.
        """
        return sum(
            -(-tokens // block_size)
            if window == FULL
            else min(-(-tokens // block_size), -(-(window - 1) // block_size) + 1)
            for window in self.windows
        )


def layer_bytes(model: Model, block_size: int, kv_bytes: int, tensor_parallel: int) -> int:
    """Return the bytes of a block of one layer on one GPU.

    `kv_heads * block_size * (k_head_size + v_head_size) * kv_bytes`, the heads split over the GPUs but never below
    one; latent attention keeps one vector for all heads, on every GPU.
    """
    if model.latent:
        return block_size * model.latent * kv_bytes
    heads = max(1, model.kv_heads // tensor_parallel)
    return heads * block_size * (model.k_head_size + model.v_head_size) * kv_bytes


def token_bytes(model: Model, deployment: Deployment) -> int:
    """Return the bytes that one token takes on all GPUs together, in all layers."""
    per_layer = layer_bytes(model, 1, deployment.kv_bytes, deployment.tensor_parallel)
    return per_layer * model.layers * deployment.tensor_parallel


def kv_groups(model: Model, pipeline_parallel: int = 1) -> Groups:
    """Return the groups, by vLLM 0.32.0's rule (`_get_kv_cache_groups_uniform_page_size`).

    Layers of one kind make groups as large as the smaller kind is, the last one padded; where the larger kind has
    less than half more layers, as large as that one.
    """
    kinds = {window: model.windows.count(window) for window in dict.fromkeys(model.windows)}
    kinds = {window: -(-layers // pipeline_parallel) for window, layers in kinds.items()}
    size = max(kinds.values()) if max(kinds.values()) < 1.5 * min(kinds.values()) else min(kinds.values())
    # Full ones first, as their hits are looked up first.
    ordered = sorted(kinds, key=lambda window: window != FULL)
    return Groups(size, tuple(window for window in ordered for _ in range(-(-kinds[window] // size))))


def weight_bytes(model: Model, deployment: Deployment) -> float:
    """Return the bytes of the weights on one GPU."""
    return model.weight_bytes / deployment.gpus


def reserve_bytes(model: Model, deployment: Deployment) -> float:
    """Return an estimate of what vLLM keeps on each GPU beside weights and cache.

    Activations of the largest step: in the widest layer, gate and up projection, their product, and three vectors as
    wide as the model, 2 bytes each; then logits of `max_num_seqs` sequences and two copies of them (softmax,
    sorting), 4 bytes each. Plus CUDA graphs, context and workspaces.
    """
    if deployment.reserve_gib is not None:
        return deployment.reserve_gib * (1 << 30)
    parallel = deployment.tensor_parallel
    wide = 3 * model.intermediate / parallel + 3 * model.hidden
    activations = deployment.max_num_batched_tokens * wide * 2
    logits = deployment.max_num_seqs * model.vocabulary / parallel * 4 * 3
    return activations + logits + _GRAPH_BYTES + _CONTEXT_BYTES


def kv_memory(model: Model, gpu: Gpu, deployment: Deployment) -> float:
    """Return the bytes left for the KV cache on each GPU; not above 0 where the model does not fit.

    vLLM: `memory * gpu_memory_utilization - weights - reserve`. SGLang: `memory * mem_fraction_static - weights`, the
    memory without the CUDA context, where the fraction covers weights and cache alone.
    """
    weights = weight_bytes(model, deployment)
    if deployment.engine == "sglang":
        fraction = deployment.mem_fraction_static or mem_fraction_static(model, gpu, deployment)
        return (gpu.memory_bytes - _CONTEXT_BYTES) * fraction - weights
    share = deployment.gpu_memory_utilization or VLLM_UTILIZATION
    return gpu.memory_bytes * share - weights - reserve_bytes(model, deployment)


def chunked_prefill_size(gpu: Gpu) -> int:
    """Return SGLang 0.5.22's default by GPU memory (`arg_groups/memory_hook.py`)."""
    mib = gpu.memory_bytes / MIB
    return next((size for limit, size in ((20, 2048), (60, 4096), (160, 8192)) if mib < limit * 1024), 16384)


def mem_fraction_static(model: Model, gpu: Gpu, deployment: Deployment) -> float:
    """Return SGLang 0.5.22's default share of weights and cache (`arg_groups/memory_hook.py`).

    Models without latent attention: what graphs took is measured before the pool is sized, so 1.5 GiB are kept. With
    it: 0.5 GiB, 1.5 MiB for each token of a prefill chunk, 2 MiB for each sequence of the largest decode graph,
    1.5 GiB for prefill graphs, on GPUs above 60 GiB at least 10 GiB. Both: 128 MiB for each GPU of the group.
    """
    mib = gpu.memory_bytes / MIB
    parallel = deployment.gpus / 8 * 1024
    if not model.latent:
        reserved = 1536 + parallel
    else:
        chunk = deployment.chunked_prefill_size or chunked_prefill_size(gpu)
        reserved = 512 + 1.5 * max(chunk, 2048) + parallel + 2 * _largest_graph(mib, deployment) + 1536
        if mib > 60 * 1024:
            reserved = max(reserved, 10 * 1024)
    return round((mib - reserved) / mib, 3)


def _largest_graph(mib: float, deployment: Deployment) -> int:
    """Sequences of SGLang's largest decode graph, by GPU memory and tensor parallelism."""
    sizes = ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512))
    for limit, few, many in sizes:
        if mib < limit * 1024:
            return few if deployment.tensor_parallel < 4 else many
    return 512
