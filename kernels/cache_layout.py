"""How K and V of one layer lie in memory: what a kernel sees, and in which physical order.

A kernel addresses both layouts alike, as K and V of the logical shape
`[num_blocks, block_size, num_kv_heads, head_size]`; only strides differ, so one kernel source serves all.
"""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import FLOAT_TYPES, FP8, expect, expect_head_size


@dataclass(frozen=True)
class KVCache:
    """K and V of one layer in a paged cache, each `[num_blocks, block_size, num_kv_heads, head_size]` by some strides.

    Raises:
        TypeError, ValueError: K and V do not go together.
    """

    k: Tensor
    v: Tensor

    def __post_init__(self) -> None:
        expect("k cache", self.k, (None,) * 4, (*FLOAT_TYPES, FP8))
        expect("v cache", self.v, tuple(self.k.shape), self.k.dtype, self.k)
        expect_head_size(self.head_size)

    @property
    def num_blocks(self) -> int:
        return self.k.shape[0]

    @property
    def block_size(self) -> int:
        return self.k.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[2]

    @property
    def head_size(self) -> int:
        return self.k.shape[3]

    @property
    def strides(self) -> tuple[int, int, int, int, int, int]:
        """Block, token and head strides of K and of V, in elements: what kernels are given."""
        (k_block, k_token, k_head, _), (v_block, v_token, v_head, _) = self.k.stride(), self.v.stride()
        return k_block, k_token, k_head, v_block, v_token, v_head

    def rows(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of K and V at `slots` (int64 [n]), each [n, num_kv_heads, head_size]. For references and checks."""
        block, offset = slots // self.block_size, slots % self.block_size
        return self.k[block, offset], self.v[block, offset]


@dataclass(frozen=True)
class KVCacheLayout:
    """A physical layout.

    Attributes:
        name: for messages and tables.
        order: the dimensions from the outermost to the innermost, of `block`, `token`, `head`, `dim`.
        packed: whether K and V are one tensor, V behind K in the last dimension, or two.
    """

    name: str
    order: tuple[str, str, str, str]
    packed: bool

    def physical_shape(self, num_blocks: int, block_size: int, kv_heads: int, head_size: int) -> tuple[int, ...]:
        """The shape of the tensor in memory (where not packed: of each of the two)."""
        extent = {
            "block": num_blocks,
            "token": block_size,
            "head": kv_heads,
            "dim": head_size * (2 if self.packed else 1),
        }
        return tuple(extent[name] for name in self.order)

    def view(self, *physical: Tensor) -> KVCache:
        """The logical K and V of tensors in this layout: one if packed, else K and V."""
        if len(physical) != (1 if self.packed else 2):
            raise ValueError(f"{self.name}: expected {'one tensor' if self.packed else 'K and V'}, got {len(physical)}")
        places = tuple(self.order.index(name) for name in ("block", "token", "head", "dim"))
        logical = [tensor.permute(places) for tensor in physical]
        if self.packed:
            half = logical[0].shape[-1] // 2
            return KVCache(logical[0][..., :half], logical[0][..., half:])
        return KVCache(*logical)

    def allocate(
        self,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> KVCache:
        """A new cache, every element NaN: whoever reads what nobody wrote, notices."""
        shape = self.physical_shape(num_blocks, block_size, kv_heads, head_size)
        count = 1 if self.packed else 2
        return self.view(*(_poisoned(shape, dtype, device) for _ in range(count)))


PACKED = KVCacheLayout("packed", ("block", "head", "token", "dim"), packed=True)
"""`[num_blocks, num_kv_heads, block_size, 2 * head_size]`: blocks outermost, K and V in one last dimension."""
SEPARATE = KVCacheLayout("separate", ("block", "token", "head", "dim"), packed=False)
"""K and V each `[num_blocks, block_size, num_kv_heads, head_size]`."""
LAYOUTS = {layout.name: layout for layout in (PACKED, SEPARATE)}


def slot_cache(k_buffer: Tensor, v_buffer: Tensor) -> KVCache:
    """SGLang's K and V, `[slots + page_size, num_kv_heads, head_size]` each, as a cache of blocks of one token.

    Slot ids address tokens there, whatever the page size, so that pages are the allocator's business alone.
    """
    return KVCache(k_buffer.unsqueeze(1), v_buffer.unsqueeze(1))


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if dtype == FP8:
        return torch.full(shape, 0x7F, dtype=torch.uint8, device=device).view(dtype)
    return torch.full(shape, torch.nan, dtype=dtype, device=device)
