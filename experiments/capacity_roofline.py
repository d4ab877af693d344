"""The coefficients of the roofline step time from a model and a GPU."""

from __future__ import annotations

from ..sim.settings import RooflineSettings
from .capacity_gpu import Gpu
from .capacity_memory import Deployment, layer_bytes
from .capacity_model import FULL, Model

_SECOND_NS = 1e9
_KERNELS_A_LAYER = 5
"""Two norms, rotary embedding, activation, writing keys and values to the cache."""
_KERNEL_NS = 3_000
"""Of one of them, start to start: 2.4 to 3.5 microseconds each for up to 64 tokens in LLMServingSim's profiles of RTX
4090 and RTX PRO 6000 (profiler/perf); mem_empirical_constant_latency of all systems in aiconfigurator-core 0.12.0."""
_ALL_REDUCE_NS = 10_000
"""Of one all-reduce, apart from the transfer: p2p_latency of all systems in aiconfigurator-core 0.12.0."""
_HOST_NS = 3_000_000
"""Scheduling, input preparation and launch of one step on the host; assumed, as no source has it by machine."""


def roofline_coefficients(model: Model, gpu: Gpu, deployment: Deployment) -> RooflineSettings:
    """Return how long each part of a step takes at the share of the GPU's peaks that its preset says is reached.

    FLOPs: two for each weight and token; attention two for each value of key and value, query head and pair of tokens.
    Bytes: weights once a step, the cache of each decoding request once. Tensor parallelism divides weights and
    heads; a layer has two ring all-reduces of hidden-size vectors in 2 bytes (2 (n - 1) / n of it sent by each GPU).
    """
    n = deployment.tensor_parallel
    read = _SECOND_NS / (gpu.bandwidth * gpu.bandwidth_efficiency)
    dtype = "fp8" if model.bits <= 8 and "fp8" in gpu.flops else "bf16"
    read_cache = _SECOND_NS / (gpu.bandwidth * gpu.cache_efficiency)
    multiply = _SECOND_NS / (gpu.flops[dtype] * gpu.compute_efficiency)
    attend = _SECOND_NS / (gpu.flops["bf16"] * gpu.attention_efficiency)
    full = model.windows.count(FULL)
    windowed = model.layers - full
    cached = layer_bytes(model, 1, deployment.kv_bytes, n)
    pair_flops = 2 * (model.k_head_size + model.v_head_size) * model.heads / n
    active = model.attention_parameters + model.dense_parameters + model.expert_parameters * model.expert_share
    return RooflineSettings(
        weights_ns=model.dense_bytes / n * read,
        experts_ns=model.expert_bytes / n * read,
        expert_share=model.expert_share,
        token_ns=2 * active / n * multiply,
        head_ns=model.head_bytes / n * read,
        head_seq_ns=2 * model.head_parameters / n * _SECOND_NS / (gpu.flops["bf16"] * gpu.compute_efficiency),
        decode_seq_ns=0.0,
        decode_context_ns=cached * full * read_cache,
        prefill_pair_ns=pair_flops * full * attend,
        window=max(model.windows),
        window_context_ns=cached * windowed * read_cache,
        window_pair_ns=pair_flops * windowed * attend,
        kernels_ns=float(_KERNELS_A_LAYER * _KERNEL_NS * model.layers),
        comm_ns=float(2 * model.layers * _ALL_REDUCE_NS if n > 1 else 0),
        comm_token_ns=2 * model.layers * 2 * (n - 1) / n * model.hidden * 2 / gpu.link * _SECOND_NS,
        host_ns=float(_HOST_NS),
    )
