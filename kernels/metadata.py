"""What a step tells every layer's attention call, made once a step."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class StepMetadata:
    """One object in place of many arguments: the same for all layers, so it is made once and handed on.

    Attributes:
        num_reqs: requests of the step (n).
        num_tokens: scheduled tokens of all of them.
        max_query_len: scheduled tokens of the request with the most.
        max_seq_len: tokens in the KV cache, those of the step included, of the request with the most.
        query_start_loc: int32 [n + 1], where each request's tokens begin; the last entry is `num_tokens`.
        seq_lens: int32 [n], tokens in the KV cache after the step.
        block_table: int32 [at least n, width]; vLLM: rows in batch order; SGLang: `req_to_token`, read by `rows`.
        rows: int32 [n], each request's row of `block_table`.
        slot_mapping: int64 [max_num_batched_tokens], -1 behind `num_tokens`.
    """

    num_reqs: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    rows: Tensor
    slot_mapping: Tensor
