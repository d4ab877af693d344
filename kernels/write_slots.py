"""Write K and V by slot id, as SGLang does: into two buffers `[slots + page_size, num_kv_heads, head_size]`."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from torch import Tensor

from .cache_layout import slot_cache
from .write_kv import write_kv, write_kv_reference


def write_slots(
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write one row a token: the kernel of `write_kv` with blocks of one token.

    Args:
        key: [num_tokens, num_kv_heads, head_size], fp32, fp16 or bf16.
        value: the same.
        slots: int64 [num_tokens]; 0 (the page that pads) is written like any other, -1 is skipped.
        k_buffer: [slots + page_size, num_kv_heads, head_size], of the same dtype or fp8.
        v_buffer: the same.
        k_scale: for fp8, which stores `x / scale`.
        v_scale: for fp8.

    Raises:
        TypeError, ValueError: tensors that do not go together.
    """
    write_kv(key, value, slots, slot_cache(k_buffer, v_buffer), k_scale, v_scale)


def write_slots_reference(
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """The same in plain torch."""
    write_kv_reference(key, value, slots, slot_cache(k_buffer, v_buffer), k_scale, v_scale)
