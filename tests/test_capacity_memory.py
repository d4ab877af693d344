"""KV capacity by hand: bytes of a block, groups, what the engines leave for the cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvreplay.experiments.capacity_backends import preferred_block_size
from kvreplay.experiments.capacity_gpu import load_gpu
from kvreplay.experiments.capacity_memory import (
    Deployment,
    Groups,
    kv_groups,
    kv_memory,
    layer_bytes,
    mem_fraction_static,
    token_bytes,
    weight_bytes,
)
from kvreplay.experiments.capacity_model import load_model
from kvreplay.experiments.capacity_presets import preset_names
from kvreplay.experiments.capacity_rows import concurrent
from kvreplay.traces import InputError

KIB = 1024
LLAMA = load_model("llama-3.1-8b")

PUBLISHED = {
    "llama-3.1-8b": 8.03e9,
    "llama-3.1-70b": 70.6e9,
    "llama-3.3-70b": 70.6e9,
    "qwen2.5-7b": 7.61e9,
    "qwen2.5-32b": 32.8e9,
    "qwen2.5-72b": 72.7e9,
    "qwen3-8b": 8.19e9,
    "qwen3-32b": 32.8e9,
    "qwen3-30b-a3b": 30.5e9,
    "qwen3-235b-a22b": 235e9,
    "mistral-7b": 7.24e9,
    "mixtral-8x7b": 46.7e9,
    "gemma-3-27b": 27.4e9,
    "gpt-oss-120b": 116.8e9,
    "deepseek-v3": 671e9,
}


def test_parameters_are_those_that_were_published() -> None:
    assert set(PUBLISHED) == set(preset_names("models"))
    for name, parameters in PUBLISHED.items():
        assert load_model(name).parameters == pytest.approx(parameters, rel=0.003), name


def test_bytes_of_a_block_and_a_token() -> None:
    # 8 heads of 128, keys and values, 2 bytes, 16 tokens.
    assert layer_bytes(LLAMA, 16, 2, 1) == 64 * KIB
    assert layer_bytes(LLAMA, 16, 2, 1) * LLAMA.layers == 2048 * KIB
    assert token_bytes(LLAMA, Deployment()) == 128 * KIB
    assert token_bytes(LLAMA, Deployment(kv_cache_dtype="fp8")) == 64 * KIB


def test_heads_are_split_but_never_below_one() -> None:
    assert layer_bytes(LLAMA, 16, 2, 8) == 8 * KIB
    assert layer_bytes(LLAMA, 16, 2, 16) == 8 * KIB
    # So that each token takes twice as much in all.
    assert token_bytes(LLAMA, Deployment(tensor_parallel=16)) == 256 * KIB


def test_latent_attention_keeps_one_vector_on_every_gpu() -> None:
    deepseek = load_model("deepseek-v3")
    assert layer_bytes(deepseek, 64, 2, 1) == layer_bytes(deepseek, 64, 2, 8) == 64 * (512 + 64) * 2


def test_groups_as_vllm_forms_them() -> None:
    assert kv_groups(LLAMA) == Groups(32, (0,))
    assert kv_groups(load_model("gpt-oss-120b")) == Groups(18, (0, 128))
    # 10 full and 52 windowed layers: groups of 10, the last one padded.
    assert kv_groups(load_model("gemma-3-27b")) == Groups(10, (0, *(1024,) * 6))
    assert kv_groups(load_model("mistral-7b")) == Groups(32, (4096,))


def test_blocks_of_a_request_in_a_window() -> None:
    groups = Groups(18, (0, 128))
    assert groups.blocks(16, 16) == 2
    # Full: 63 blocks. Window: 128 tokens reach into 9 blocks at most.
    assert groups.blocks(1000, 16) == 63 + 9


def test_what_vllm_leaves() -> None:
    gpu = load_gpu("h100")
    laid = Deployment(gpu_memory_utilization=0.9, reserve_gib=2.0)
    left = gpu.memory_bytes * 0.9 - LLAMA.weight_bytes - 2 * (1 << 30)
    assert kv_memory(LLAMA, gpu, laid) == pytest.approx(left)
    halved = replace(laid, tensor_parallel=2)
    assert weight_bytes(LLAMA, halved) == LLAMA.weight_bytes / 2


def test_the_recorded_rtx_4090_is_within_five_percent() -> None:
    laid = Deployment(gpu_memory_utilization=0.9, max_num_batched_tokens=2048, max_num_seqs=256)
    blocks = kv_memory(LLAMA, load_gpu("rtx-4090"), laid) / (layer_bytes(LLAMA, 16, 2, 1) * 32)
    assert blocks == pytest.approx(2588, rel=0.05)


def test_sglang_keeps_more_where_attention_is_latent() -> None:
    gpu, laid = load_gpu("h200"), Deployment(engine="sglang", tensor_parallel=8)
    assert mem_fraction_static(LLAMA, gpu, laid) == round((143771 - 1536 - 1024) / 143771, 3)
    # 512 + 8192 * 1.5 + 1024 + 512 graphs * 2 + 1536 MiB is above the least of 10 GiB.
    reserved = 512 + 8192 * 1.5 + 1024 + 512 * 2 + 1536
    assert mem_fraction_static(load_model("deepseek-v3"), gpu, laid) == round((143771 - reserved) / 143771, 3)


def test_block_sizes_of_backends() -> None:
    assert preferred_block_size("vllm", None) == 16
    assert preferred_block_size("vllm", "flashmla") == 64
    assert preferred_block_size("vllm", "CUTLASS_MLA") == 128
    assert preferred_block_size("sglang", None) == 1
    assert preferred_block_size("sglang", "fa4", "10.0") == 128
    assert preferred_block_size("sglang", "fa4", "9.0") == 1
    with pytest.raises(InputError, match="attention_backend: warp: not a backend of vllm"):
        preferred_block_size("vllm", "warp")


def test_requests_that_fit_at_once() -> None:
    fits = concurrent(Groups(32, (0,)), 100, 16, 17, 320)
    assert fits == {"block_pool": 50, "paged_slots": 50, "token_slots": 94, "contiguous": 5}
