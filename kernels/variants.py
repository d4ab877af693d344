"""Every kernel in every configuration in which its wrapper launches it, as something to compile without a GPU."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .block_table import append_rows_kernel, gather_rows_kernel
from .gather_kv import gather_kv_kernel
from .launch import Tile
from .page_alloc import alloc_decode_kernel, alloc_extend_kernel
from .paged_decode import decode_kernel, decode_tile, reduce_kernel
from .paged_prefill import prefill_kernel, prefill_tile
from .slot_mapping import slot_mapping_kernel
from .write_kv import write_kv_kernel, write_tile

HEADS = (16, 64, 128, 256)
"""What engines use, and the size that a validation uses."""
BLOCK_SIZES = (1, 16, 32, 64, 128, 256)
GROUPS = (1, 32, 128)
"""Query heads a KV head; with two-byte elements they take 16, 32 and 64 rows of a tile."""
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
DEFAULT_BLOCK_SIZE = 16
DEFAULT_GROUP = 1


@dataclass(frozen=True)
class Variant:
    """One compilation.

    Attributes:
        operation: the name for people.
        config: what is specific to it, in a few words.
        kernel: the `triton.jit` function.
        types: of the arguments that are not compile-time constants, by name; all others are 32-bit integers.
        meta: the compile-time constants.
        tile: whose launch options count.
        default: whether engines run it as they ship: bf16, blocks of 16 tokens.
        needs: the least compute capability, times ten.
    """

    operation: str
    config: str
    kernel: Any
    types: dict[str, str]
    meta: dict[str, Any]
    tile: Tile
    default: bool = True
    needs: int = 80

    def source(self) -> Any:
        """What `triton.compile` takes. Pointers and strides are multiples of 16, as with an allocator's tensors."""
        from triton.compiler import ASTSource

        names = list(self.kernel.arg_names)
        signature = {name: "constexpr" if name in self.meta else self.types.get(name, "i32") for name in names}
        aligned = [
            place for place, name in enumerate(names) if signature[name].startswith("*") or name.endswith(_STRIDES)
        ]
        return ASTSource(
            self.kernel, signature, dict(self.meta), attrs={(place,): [["tt.divisibility", 16]] for place in aligned}
        )


_STRIDES = ("_stride", "_block", "_token", "_head", "_seq")
_SMALL = Tile(1, 1024, 4, 3)
_TABLES = {"block_table": "*i32", "rows": "*i32"}


def variants() -> Iterator[Variant]:
    """All of them, the ones of each operation together."""
    yield from _tables()
    yield from _slots()
    yield from _pages()
    for block_size in BLOCK_SIZES:
        for head_size in HEADS:
            for dtype in BYTES:
                yield from _copies(block_size, head_size, dtype)
                yield from _attention(block_size, head_size, dtype)
    for head_size in HEADS:
        for dtype in BYTES:
            yield _reduction(head_size, dtype)


def _tables() -> Iterator[Variant]:
    types = {"table": "*i32", "rows": "*i32", "starts": "*i32", "offsets": "*i32"}
    for operation, width in (("append rows", "i32"), ("write req_to_token", "i64")):
        yield Variant(
            operation, f"ids {width}", append_rows_kernel, types | {"values": f"*{width}"}, {"BLOCK": 1024}, _SMALL
        )
    types = {"table": "*i32", "index": "*i32", "counts": "*i32", "out": "*i32"}
    yield Variant("gather rows", "", gather_rows_kernel, types, {"BLOCK": 1024}, _SMALL)


def _slots() -> Iterator[Variant]:
    types = {"query_start_loc": "*i32", "positions": "*i64", "block_table": "*i32", "slots": "*i64"}
    for block_size in BLOCK_SIZES:
        for cp_size in (1, 2, 8):
            meta = {"BLOCK_SIZE": block_size, "CP_SIZE": cp_size, "CP_RANK": cp_size - 1, "INTERLEAVE": 1}
            yield Variant(
                "slot mapping",
                f"block {block_size}, cp {cp_size}",
                slot_mapping_kernel,
                types,
                meta | {"BLOCK": 1024},
                _SMALL,
                block_size == DEFAULT_BLOCK_SIZE and cp_size == 1,
            )


def _pages() -> Iterator[Variant]:
    types: dict[str, str] = dict.fromkeys(("prefix_lens", "seq_lens", "last_slots", "free_pages", "out"), "*i64")
    for page_size in BLOCK_SIZES:
        for operation, kernel in (("alloc_extend", alloc_extend_kernel), ("alloc_decode", alloc_decode_kernel)):
            meta = {"PAGE_SIZE": page_size, "BLOCK": 256}
            yield Variant(operation, f"page {page_size}", kernel, types, meta, _SMALL, page_size == 64)


def _copies(block_size: int, head_size: int, dtype: str) -> Iterator[Variant]:
    tile = write_tile(head_size)
    meta = {"BLOCK_SIZE": block_size, "HEAD_SIZE": head_size, "TOKENS": tile.tokens}
    default = block_size == DEFAULT_BLOCK_SIZE and dtype == "bf16"
    config = f"{dtype}, head {head_size}, block {block_size}"
    tensors = {"key": f"*{dtype}", "value": f"*{dtype}", "slots": "*i64", "k_scale": "fp32", "v_scale": "fp32"}
    for cache, needs in ((dtype, 80), ("fp8e4nv", 89)):
        types = tensors | {"k_cache": f"*{cache}", "v_cache": f"*{cache}"}
        fp8 = cache == "fp8e4nv"
        name = "write K and V, fp8" if fp8 else "write K and V"
        yield Variant(name, config, write_kv_kernel, types, meta | {"FP8": fp8}, tile, default, needs)
    types = tensors | _TABLES | {"k_cache": f"*{dtype}", "v_cache": f"*{dtype}", "offsets": "*i32"}
    yield Variant("gather K and V", config, gather_kv_kernel, types, meta, tile, default)


def _attention(block_size: int, head_size: int, dtype: str) -> Iterator[Variant]:
    tensors = dict.fromkeys(("query", "k_cache", "v_cache", "out"), f"*{dtype}")
    types = tensors | _TABLES | {"seq_lens": "*i32", "query_start_loc": "*i32", "scale": "fp32"}
    parts = {"part_out": "*fp32", "part_lse": "*fp32"}
    default = block_size == DEFAULT_BLOCK_SIZE and dtype == "bf16"
    config = f"{dtype}, head {head_size}, block {block_size}"
    tile = prefill_tile(head_size, BYTES[dtype])
    meta = {"BLOCK_SIZE": block_size, "HEAD_SIZE": head_size, "ROWS": tile.rows, "TOKENS": tile.tokens}
    yield Variant("prefill attention", config, prefill_kernel, types, meta, tile, default)
    seen = set()
    for group in GROUPS:
        tile = decode_tile(head_size, group, BYTES[dtype])
        if tile not in seen:
            seen.add(tile)
            meta = {"BLOCK_SIZE": block_size, "HEAD_SIZE": head_size, "ROWS": tile.rows, "TOKENS": tile.tokens}
            name = f"{config}, {tile.rows} rows"
            yield Variant("decode attention", name, decode_kernel, types | parts, meta, tile, default)


def _reduction(head_size: int, dtype: str) -> Variant:
    types = {"part_out": "*fp32", "part_lse": "*fp32", "out": f"*{dtype}"}
    tile = Tile(1, 1, 1, 3)
    meta = {"HEAD_SIZE": head_size, "SPLITS": 32}
    return Variant("decode reduction", f"{dtype}, head {head_size}", reduce_kernel, types, meta, tile, dtype == "bf16")
