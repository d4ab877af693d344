"""Write K and V of a step's tokens into the paged cache, by slot mapping."""

from __future__ import annotations

# torch and triton come with the extra `kernels`; `triton.jit` says nothing to type checkers of launches.
# pyright: reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from .cache_layout import KVCache
from .checks import FLOAT_TYPES, FP8, expect
from .launch import Tile, ceil_div, tokens_at_a_time
from .numerics import to_fp8

FP8_MAX = 448.0
"""Largest finite e4m3 number: larger ones are written as this, not as NaN."""


@triton.jit
def write_kv_kernel(
    # tensors
    key,
    value,
    slots,
    k_cache,
    v_cache,
    # sizes and scales
    num_tokens,
    k_scale,
    v_scale,
    # strides
    key_token,
    key_head,
    value_token,
    value_head,
    k_block,
    k_token,
    k_head,
    v_block,
    v_token,
    v_head,
    # meta
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    HEAD_SIZE: tl.constexpr,  # noqa: N803
    FP8: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr,  # noqa: N803
):
    """One program TOKENS tokens of one head: rows of HEAD_SIZE elements are read and written whole."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    dim = tl.arange(0, HEAD_SIZE)[None, :]
    slot = tl.load(slots + token, mask=token < num_tokens, other=-1)
    live = (slot >= 0)[:, None]
    block = (slot // BLOCK_SIZE)[:, None]
    offset = (slot % BLOCK_SIZE)[:, None]
    token = token.to(tl.int64)[:, None]
    k = tl.load(key + token * key_token + head * key_head + dim, mask=live, other=0.0)
    v = tl.load(value + token * value_token + head * value_head + dim, mask=live, other=0.0)
    if FP8:
        k = to_fp8(k.to(tl.float32) / k_scale)
        v = to_fp8(v.to(tl.float32) / v_scale)
    tl.store(k_cache + block * k_block + offset * k_token + head * k_head + dim, k, mask=live)
    tl.store(v_cache + block * v_block + offset * v_token + head * v_head + dim, v, mask=live)


def write_tile(head_size: int) -> Tile:
    """4 KiB of two-byte elements a program: enough loads in flight, and enough programs in a small batch."""
    return Tile(rows=1, tokens=tokens_at_a_time(head_size, 2048 // head_size), num_warps=4, num_stages=1)


def write_kv(
    key: Tensor, value: Tensor, slots: Tensor, cache: KVCache, k_scale: float = 1.0, v_scale: float = 1.0
) -> None:
    """Write one row a token; tokens with slot -1 are skipped.

    Args:
        key: [num_tokens, num_kv_heads, head_size], fp32, fp16 or bf16; strided as the projection left it.
        value: the same.
        slots: int64 [num_tokens], no slot twice.
        cache: of the same dtype, or fp8 (e4m3), which stores `x / scale`, saturating.
        k_scale: for fp8.
        v_scale: for fp8.

    Raises:
        TypeError, ValueError: tensors that do not go together.
    """
    _expect(key, value, slots, cache)
    num_tokens, heads, head_size = key.shape
    if not num_tokens:
        return
    tile = write_tile(head_size)
    write_kv_kernel[(ceil_div(num_tokens, tile.tokens), heads)](
        key,
        value,
        slots,
        cache.k,
        cache.v,
        num_tokens,
        k_scale,
        v_scale,
        *key.stride()[:2],
        *value.stride()[:2],
        *cache.strides,
        BLOCK_SIZE=cache.block_size,
        HEAD_SIZE=head_size,
        FP8=cache.k.dtype == FP8,
        TOKENS=tile.tokens,
        num_warps=tile.num_warps,
    )


def write_kv_reference(
    key: Tensor, value: Tensor, slots: Tensor, cache: KVCache, k_scale: float = 1.0, v_scale: float = 1.0
) -> None:
    """The same in plain torch."""
    _expect(key, value, slots, cache)
    live = slots >= 0
    if not bool(live.all()):
        key, value, slots = key[live], value[live], slots[live]
    if cache.k.dtype == FP8:
        key, value = _to_fp8(key, k_scale), _to_fp8(value, v_scale)
    block, offset = slots // cache.block_size, slots % cache.block_size
    cache.k[block, offset] = key
    cache.v[block, offset] = value


def _to_fp8(x: Tensor, scale: float) -> Tensor:
    return (x.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8)


def _expect(key: Tensor, value: Tensor, slots: Tensor, cache: KVCache) -> None:
    expect("key", key, (None, cache.kv_heads, cache.head_size), FLOAT_TYPES, cache.k)
    expect("value", value, tuple(key.shape), key.dtype, cache.k)
    expect("slots", slots, (len(key),), torch.int64, cache.k)
    if cache.k.dtype not in (key.dtype, FP8):
        raise TypeError(f"cache: expected {key.dtype} as of key, or {FP8}, got {cache.k.dtype}")
