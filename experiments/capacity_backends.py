"""The block size (vLLM) or page size (SGLang) that an attention backend prefers: `allocator.block_size: auto`."""

from __future__ import annotations

from ..traces.errors import InputError

_VLLM_DEFAULT = 16
_VLLM = {
    "FLASH_ATTN": 16,
    "FLASHINFER": 16,
    "TRITON_ATTN": 16,
    "FLEX_ATTENTION": 16,
    "ROCM_ATTN": 16,
    "ROCM_AITER_FA": 16,
    "ROCM_AITER_UNIFIED_ATTN": 64,
    "TURBOQUANT": 16,
    "ULTRAQUANT": 64,
    "CPU_ATTN": 32,
    "B12X": 128,
    "FLASHMLA": 64,
    "FLASHMLA_SPARSE": 64,
    "FLASH_ATTN_MLA": 16,
    "CUTLASS_MLA": 128,
    "FLASHINFER_MLA": 32,
    "TOKENSPEED_MLA": 32,
    "TRITON_MLA": 16,
    "ROCM_AITER_MLA": 16,
    "CPU_MLA": 16,
}
"""vLLM 0.32.0, `get_preferred_block_size` of each backend in v1/attention/backends on CUDA or its own platform: 16
where the kernels take multiples of it, else the smallest size that they take."""

_SGLANG_DEFAULT = 1
_SGLANG = {
    "flashmla": 64,
    "trtllm_mla": 64,
    "tokenspeed_mla": 64,
    "cutedsl_mla": 64,
    "trtllm_mha": 64,
    "hpc_ops": 64,
    "flashinfer": 1,
    "fa3": 1,
    "triton": 1,
    "torch_native": 1,
    "intel_xpu": 128,
    "musa": 64,
}
"""SGLang 0.5.22, `arg_groups/overrides.py`, where the user gave no page size."""

_BLACKWELL = ("10.0", "10.3")
"""Compute capabilities of SM100."""


def preferred_block_size(engine: str, backend: str | None, compute_capability: str = "", latent: bool = False) -> int:
    """Return the tokens of a block that `backend` prefers; the engine's default where none is named.

    Args:
        engine: vllm or sglang.
        backend: its name as the engine spells it, in any case.
        compute_capability: of the GPU, such as 9.0; empty where it is not known.
        latent: whether the model has multi-head latent attention.

    Raises:
        InputError: the engine has no such backend in the table.
    """
    default, table = (_SGLANG_DEFAULT, _SGLANG) if engine == "sglang" else (_VLLM_DEFAULT, _VLLM)
    if backend is None:
        return default
    if engine == "sglang" and backend.lower() == "fa4":
        return 128 if compute_capability in _BLACKWELL and not latent else 1
    by_name = {name.lower(): size for name, size in table.items()}
    if backend.lower() not in by_name:
        known = ", ".join([*table, *(["fa4"] if engine == "sglang" else [])])
        raise InputError(
            f"attention_backend: {backend}: not a backend of {engine} that is known here; known are {known}"
        )
    return by_name[backend.lower()]
