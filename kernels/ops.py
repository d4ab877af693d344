"""The operations that a worker calls, as Triton kernels or in plain torch: two sets with the same signatures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .block_table import append_rows, append_rows_reference, gather_rows, gather_rows_reference
from .gather_kv import gather_kv, gather_kv_reference
from .page_alloc import alloc_decode, alloc_decode_reference, alloc_extend, alloc_extend_reference
from .paged_decode import paged_decode, paged_decode_reference
from .paged_prefill import paged_prefill, paged_prefill_reference
from .slot_mapping import slot_mapping, slot_mapping_reference
from .write_kv import write_kv, write_kv_reference

Operation = Callable[..., Any]


@dataclass(frozen=True)
class Ops:
    """One set; each does what the wrapper of its name says."""

    append_rows: Operation
    gather_rows: Operation
    slot_mapping: Operation
    write_kv: Operation
    gather_kv: Operation
    paged_decode: Operation
    paged_prefill: Operation
    alloc_extend: Operation
    alloc_decode: Operation


TRITON = Ops(
    append_rows,
    gather_rows,
    slot_mapping,
    write_kv,
    gather_kv,
    paged_decode,
    paged_prefill,
    alloc_extend,
    alloc_decode,
)
TORCH = Ops(
    append_rows_reference,
    gather_rows_reference,
    slot_mapping_reference,
    write_kv_reference,
    gather_kv_reference,
    paged_decode_reference,
    paged_prefill_reference,
    alloc_extend_reference,
    alloc_decode_reference,
)
