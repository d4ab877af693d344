"""Capacity and block size of settings that name a model and a GPU."""

from __future__ import annotations

from dataclasses import replace

from ..sim.settings import SchedulerSettings, Settings, SglangSettings
from ..traces.errors import InputError
from .capacity_backends import preferred_block_size
from .capacity_gpu import Gpu, load_gpu
from .capacity_memory import Deployment, kv_memory, layer_bytes, weight_bytes
from .capacity_model import Model, load_model


def deployment(settings: Settings) -> Deployment:
    """Return how the settings lay a model on GPUs."""
    scheduler = settings.scheduler
    values = Deployment(
        engine=settings.engine,
        tensor_parallel=settings.tensor_parallel or 1,
        pipeline_parallel=settings.pipeline_parallel or 1,
        kv_cache_dtype=settings.kv_cache_dtype or "auto",
        gpu_memory_utilization=settings.gpu_memory_utilization,
        mem_fraction_static=settings.mem_fraction_static,
        reserve_gib=settings.reserve_gib,
    )
    if isinstance(scheduler, SchedulerSettings):
        tokens, seqs = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
        return replace(values, max_num_batched_tokens=tokens, max_num_seqs=seqs)
    assert isinstance(scheduler, SglangSettings)
    return replace(values, chunked_prefill_size=scheduler.chunked_prefill_size)


def fitting_tokens(settings: Settings) -> int:
    """Return the tokens that fit into what `settings.model` leaves of `settings.gpu`, in whole blocks.

    All layers share one block table, as the simulated pool has one group: a model with sliding windows holds every
    token in all of its layers.

    Raises:
        InputError: model or GPU are not known, or the weights leave no room.
    """
    assert settings.model is not None and settings.gpu is not None
    model, gpu = load_model(settings.model), load_gpu(settings.gpu)
    laid = deployment(settings)
    size = settings.allocator.block_size
    blocks = fitting_blocks(model, gpu, laid, size, model.layers)
    # The null block of vLLM holds nothing.
    usable = blocks - 1 if settings.engine == "vllm" else blocks
    if usable < 1:
        raise InputError(f"model, gpu: {explain_no_room(model, gpu, laid)}")
    return usable * size


def fitting_blocks(model: Model, gpu: Gpu, laid: Deployment, block_size: int, layers: int) -> int:
    """Return the blocks that fit where a block holds `block_size` tokens of `layers` layers; below 1: none."""
    stage_layers = -(-layers // laid.pipeline_parallel)
    block = layer_bytes(model, block_size, laid.kv_bytes, laid.tensor_parallel) * stage_layers
    return int(kv_memory(model, gpu, laid) // block)


def explain_no_room(model: Model, gpu: Gpu, laid: Deployment) -> str:
    """Return why nothing is left for the cache, and what would help."""
    gib = 1 << 30
    return (
        f"{model.name} leaves no room for the KV cache on {gpu.name}: {weight_bytes(model, laid) / gib:.1f} of "
        f"{gpu.memory_bytes / gib:.1f} GiB a GPU are weights (tensor_parallel {laid.tensor_parallel}); "
        "expected a larger GPU or a larger tensor_parallel"
    )


def with_preferred_block_size(settings: Settings) -> Settings:
    """Return the settings with the block size that their attention backend prefers.

    Raises:
        InputError: the backend is not known.
    """
    capability = load_gpu(settings.gpu).compute_capability if settings.gpu is not None else ""
    latent = settings.model is not None and load_model(settings.model).latent > 0
    size = preferred_block_size(settings.engine, settings.attention_backend, capability, latent)
    return replace(settings, allocator=replace(settings.allocator, block_size=size))
