"""Small arithmetic of launches."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
import os
from typing import NamedTuple

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether Triton interprets kernels: as it decides itself, at import."""
INTERPRETED_PROCESSORS = 1
"""Stands for the multiprocessor count where kernels are interpreted: splits happen, but few."""


class Tile(NamedTuple):
    """How much of the work one program takes, and with what.

    Triton's own launch options have the names `num_warps` and `num_stages`.
    """

    rows: int
    """Query tokens or query heads; 1 where a kernel has no such dimension."""
    tokens: int
    """Tokens of the KV cache at a time."""
    num_warps: int
    num_stages: int


def tokens_at_a_time(head_size: int, tokens: int) -> int:
    """`tokens`, which suit the head sizes of engines; more for the small heads of a validation.

    These are cheap on a GPU, and where programs are interpreted, few large ones take a fraction of the time.
    """
    if head_size >= 64:
        return tokens
    return 2048 if INTERPRETED else 128


def ceil_div(a: int, b: int) -> int:
    """The smallest integer not below a / b."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two not below n (1 for n <= 1)."""
    return 1 << max(n - 1, 0).bit_length()


def processors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
