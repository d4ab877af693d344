"""What stands in for the content of a token: a number made from (request, position), and K and V made from it.

A token's fingerprint is that of the first request of the trace which has the same prefix up to it, so that requests
share fingerprints exactly as far as they share content; this comes from the trace alone and knows nothing of blocks.

In memory a fingerprint is mixed (a bijection of 64 bits) and cut into 16 numbers of 4 bits, one an element of a head of
size 16, as -7.5 .. 7.5 in quarters: exact in fp32, fp16, bf16 and e4m3, never 0, and as good as random for attention.
"""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..traces.errors import InputError
from ..traces.trace import Trace

Int64 = npt.NDArray[np.int64]

HEAD_SIZE = 16
"""Elements of a head that carries a fingerprint."""
NOBODY = -1
"""Fingerprint of a slot that was never written."""
_POSITION_BITS = 24
_REQUEST_BITS = 22
_PRIVATE = 1 << (_POSITION_BITS + _REQUEST_BITS)
"""Marks tokens that nobody shares, lest one of them equal what another request shares with its prefix."""
_HEAD_SHIFT = _POSITION_BITS + _REQUEST_BITS + 1
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Odd, so that multiplication can be undone; those of splitmix64."""


class TokenIdentity:
    """Fingerprints of the tokens of a trace's requests."""

    def __init__(self, trace: Trace) -> None:
        """Find the first request that has each prefix.

        Raises:
            InputError: more requests or longer ones than a fingerprint has room for.
        """
        longest = int((trace.prompt_tokens.astype(np.int64) + trace.output_tokens).max(initial=0))
        if len(trace) >= 1 << _REQUEST_BITS or longest >= 1 << _POSITION_BITS:
            raise InputError(
                f"{trace.name}: {len(trace)} requests of up to {longest} tokens; expected fewer than "
                f"{1 << _REQUEST_BITS} of fewer than {1 << _POSITION_BITS} (use --limit)"
            )
        self._trace = trace
        self._first = np.empty(0, np.int64)
        if trace.nodes is not None and trace.node_ptr is not None:
            request = np.arange(len(trace)).repeat(np.diff(trace.node_ptr))
            self._first = np.empty(trace.num_nodes, np.int64)
            # Of several values for one place the last one stays: in reverse, that of the first request.
            self._first[trace.nodes[::-1]] = request[::-1]

    def of(self, request: int, tokens: int) -> Int64:
        """Fingerprints of a request's first `tokens` tokens, int64 [tokens]."""
        trace = self._trace
        position = np.arange(tokens)
        found = (request << _POSITION_BITS | position) | _PRIVATE
        if trace.nodes is not None and trace.node_ptr is not None and trace.covered_tokens is not None:
            known = min(tokens, int(trace.covered_tokens[request]))
            node = int(trace.node_ptr[request]) + position[:known] // trace.granularity
            found[:known] = self._first[trace.nodes[node]] << _POSITION_BITS | position[:known]
        return found


class Owner(NamedTuple):
    """Who wrote a token."""

    request: int
    position: int

    def __str__(self) -> str:
        return f"request {self.request}, position {self.position}" if self.request >= 0 else "nobody's"


def owner(fingerprint: int) -> Owner:
    """What a fingerprint was made from; request -1 where it is nobody's."""
    if fingerprint < 0:
        return Owner(-1, -1)
    fingerprint &= ~_PRIVATE
    return Owner(fingerprint >> _POSITION_BITS, fingerprint & ((1 << _POSITION_BITS) - 1))


def encode(fingerprints: Tensor, kv_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """K and V of tokens, each [n, kv_heads, 16] of `dtype`; nobody's are NaN.

    Args:
        fingerprints: int64 [n].
        kv_heads: each has its own numbers.
        dtype: floating point.
    """
    head = torch.arange(kv_heads, device=fingerprints.device) << _HEAD_SHIFT
    mixed = _mix(fingerprints[:, None] | head)
    return _elements(mixed, fingerprints, dtype), _elements(~mixed, fingerprints, dtype)


def decode(rows: Tensor, *, value: bool) -> Tensor:
    """The fingerprints that K (`value`: V) rows [n, kv_heads, 16] hold, int64 [n, kv_heads].

    What is no fingerprint, or one of another head, gives -1.
    """
    digits = rows.float() * 4 + 7.5
    whole = torch.nan_to_num(digits, nan=-1.0).round().to(torch.int64)
    valid = ((whole >= 0) & (whole < 16) & (whole == digits)).all(-1)
    mixed = torch.zeros(whole.shape[:-1], dtype=torch.int64, device=rows.device)
    for place in range(HEAD_SIZE):
        mixed |= whole[..., place] << (4 * place)
    found = _unmix(~mixed if value else mixed)
    head = torch.arange(rows.shape[1], device=rows.device)
    valid &= found >> _HEAD_SHIFT == head
    return torch.where(valid, found & ((1 << _HEAD_SHIFT) - 1), NOBODY)


def _elements(mixed: Tensor, fingerprints: Tensor, dtype: torch.dtype) -> Tensor:
    shifts = torch.arange(0, 64, 4, device=mixed.device)
    rows = ((mixed[..., None] >> shifts & 15).to(torch.float32) - 7.5) / 4
    rows[fingerprints < 0] = torch.nan
    return rows.to(dtype)


def _mix(x: Tensor) -> Tensor:
    x = x * _signed(_FACTORS[0])
    x = x ^ _upper_half(x)
    return x * _signed(_FACTORS[1])


def _unmix(x: Tensor) -> Tensor:
    x = x * _signed(pow(_FACTORS[1], -1, 1 << 64))
    x = x ^ _upper_half(x)
    return x * _signed(pow(_FACTORS[0], -1, 1 << 64))


def _upper_half(x: Tensor) -> Tensor:
    return x >> 32 & 0xFFFFFFFF


def _signed(factor: int) -> int:
    return factor - (1 << 64) if factor >> 63 else factor
