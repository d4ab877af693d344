"""A GPU as far as memory and step time depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..traces.errors import InputError
from .capacity_presets import positive, read_preset

MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """Peaks as the vendor states them, and how much of them is reached."""

    name: str
    memory_bytes: int
    bandwidth: float
    """Bytes a second."""
    flops: dict[str, float]
    """Operations a second without sparsity, by data type: bf16, fp8."""
    bandwidth_efficiency: float
    compute_efficiency: float
    cache_efficiency: float
    """Share of `bandwidth` at which decode attention reads the cache."""
    attention_efficiency: float
    """Share of `flops` that prefill attention reaches."""
    link: float
    """Bytes a second to the other GPUs, each direction."""
    compute_capability: str


def load_gpu(name: str, key: str = "gpu") -> Gpu:
    """Return the GPU of a preset, or of a YAML file with the same keys.

    Raises:
        InputError: there is none of that name, or a key is absent or wrong.
    """
    content, place = read_preset("gpus", name, key)
    efficiency = _section(content, "efficiency", place)
    flops = _section(content, "tflops", place)
    if "bf16" not in flops:
        raise InputError(f"{place}: tflops: expected bf16, and fp8 where the GPU has it")
    shares = {
        part: positive(efficiency, part, f"{place}: efficiency")
        for part in ("bandwidth", "cache", "compute", "attention")
    }
    for part, share in shares.items():
        if share > 1:
            raise InputError(f"{place}: efficiency: {part}: expected a share of at most 1, got {share}")
    return Gpu(
        name=str(content.get("name", place)),
        memory_bytes=round(positive(content, "memory_mib", place) * MIB),
        bandwidth=positive(content, "bandwidth_gb_s", place) * 1e9,
        flops={dtype: positive(flops, dtype, f"{place}: tflops") * 1e12 for dtype in flops},
        bandwidth_efficiency=shares["bandwidth"],
        cache_efficiency=shares["cache"],
        compute_efficiency=shares["compute"],
        attention_efficiency=shares["attention"],
        link=positive(content, "link_gb_s", place) * 1e9,
        compute_capability=str(content.get("compute_capability", "")),
    )


def _section(content: dict[str, Any], key: str, place: str) -> dict[str, Any]:
    section = content.get(key)
    if not isinstance(section, dict):
        raise InputError(f"{place}: {key}: expected keys and values as in the presets, got {section!r}")
    return section
