"""What the device at hand can do at most, measured in the same run: the ceilings that operations are held against."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
from dataclasses import dataclass

import torch

from .stopwatch import Stopwatch

_COPY_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
_MATRIX = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True)
class Ceilings:
    """Measured rates.

    Attributes:
        copy_bytes_per_s: of a large device-to-device copy, bytes read plus bytes written.
        matmul_flop_per_s: of a large matrix product of the benchmark's type, on random data.
    """

    copy_bytes_per_s: float
    matmul_flop_per_s: float


def measure_ceilings(device: torch.device, dtype: torch.dtype, watch: Stopwatch) -> Ceilings:
    """Measure both; on data larger than the last-level cache, random and not zero."""
    count = _COPY_BYTES[device.type] // 4
    source = torch.randint(1, 1 << 30, (count,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    copy = watch.median(lambda: target.copy_(source))
    size = _MATRIX[device.type]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = watch.median(lambda: a @ b)
    return Ceilings(2 * 4 * count / copy, 2 * size**3 / product)
