"""SGLang's `req_to_token`, int32 `[max_reqs, max_context_len]`: a row of slot ids a request, one a token."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from torch import Tensor

from .block_table import RowWrites, append_rows, append_rows_reference


def write_req_to_token(req_to_token: Tensor, rows: Tensor, starts: Tensor, offsets: Tensor, slots: Tensor) -> None:
    """Write runs of slot ids into rows, in place: the kernel of `append_rows`.

    Args:
        req_to_token: int32 [max_reqs, max_context_len].
        rows: int32 [n], the row of each write.
        starts: int32 [n], the token at which each write begins.
        offsets: int32 [n + 1], write `i` has `slots[offsets[i]:offsets[i + 1]]`.
        slots: int32 or int64 (as the allocator gives them) [offsets[n]].

    Raises:
        TypeError, ValueError: tensors that do not go together.
    """
    append_rows(req_to_token, RowWrites(rows, starts, offsets, slots))


def write_req_to_token_reference(
    req_to_token: Tensor, rows: Tensor, starts: Tensor, offsets: Tensor, slots: Tensor
) -> None:
    """The same in plain torch."""
    append_rows_reference(req_to_token, RowWrites(rows, starts, offsets, slots))
