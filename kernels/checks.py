"""What every wrapper asks of its tensors before it launches."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
import torch
from torch import Tensor

FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8 = torch.float8_e4m3fn
HEAD_SIZES = (16, 32, 64, 128, 256)
"""Engines use 64, 128 and 256; the two small ones keep checks of large pools cheap."""
MAX_QUERY_HEADS = 128


def expect(
    name: str,
    tensor: Tensor,
    shape: tuple[int | None, ...],
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    like: Tensor | None = None,
) -> None:
    """Raise unless `tensor` is what a kernel can take.

    Args:
        name: of the argument, for the message.
        tensor: whose last dimension must be contiguous, as kernels read along it.
        shape: an entry a dimension; None allows any extent.
        dtypes: one, or those allowed.
        like: a tensor that it must share the device with.

    Raises:
        TypeError: another dtype.
        ValueError: another shape, a last dimension with gaps, another device.
    """
    allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if tensor.dtype not in allowed:
        raise TypeError(f"{name}: expected {' or '.join(map(str, allowed))}, got {tensor.dtype}")
    fits = len(shape) == tensor.dim() and all(
        want is None or want == have for want, have in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name}: expected the shape [{wanted}], got {list(tensor.shape)}")
    if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name}: the last dimension must be contiguous, its stride is {tensor.stride(-1)}")
    if like is not None and tensor.device != like.device:
        raise ValueError(f"{name}: on {tensor.device}, the other tensors on {like.device}")


def expect_head_size(head_size: int) -> None:
    """Raise ValueError unless kernels are written for heads of this size."""
    if head_size not in HEAD_SIZES:
        raise ValueError(f"head_size: expected one of {', '.join(map(str, HEAD_SIZES))}, got {head_size}")


def expect_heads(query_heads: int, kv_heads: int) -> None:
    """Raise ValueError unless every KV head serves the same number of query heads, 128 in all at most."""
    if not 1 <= query_heads <= MAX_QUERY_HEADS or query_heads % kv_heads:
        raise ValueError(
            f"query heads: expected a multiple of the {kv_heads} KV heads, {MAX_QUERY_HEADS} at most, got {query_heads}"
        )


def expect_block_size(block_size: int) -> None:
    """Raise ValueError unless it is a block size (or page size) of 1 to 256 tokens."""
    if not 1 <= block_size <= 256:
        raise ValueError(f"block_size: expected 1 to 256, got {block_size}")
