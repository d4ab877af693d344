"""`kernels validate`: a replay's layout in real memory, every token in its own slot."""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
import time
from collections.abc import Callable
from typing import Any

import torch

from ..sim.settings import Settings
from ..traces.trace import Trace
from .fingerprint import TokenIdentity
from .simulated import geometry_of, lengths_of, simulate
from .steps import StepReader
from .validator import Options, Validator

_SAMPLES = {"cpu": 60, "cuda": 3000}
"""Steps looked at closely by default, about: interpreted kernels take some tenths of a second a step."""


def default_every(trace: Trace, device: str) -> int:
    """How far sampled steps lie apart: a step generates a token or more, so that there are no more than intended."""
    return max(1, int(trace.output_tokens.sum()) // _SAMPLES[device])


def validate(
    trace: Trace,
    settings: Settings,
    num_blocks: int,
    options: Options,
    every: int,
    progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, Any]:
    """Replay `trace` and do what a worker does, checking all of it.

    Args:
        trace: the requests.
        settings: of the engine.
        num_blocks: of the pool, the null block included.
        options: device, types and sizes of the check.
        every: one step in so many is looked at closely.
        progress: called now and then with the requests done and all requests.

    Returns:
        Counts, differences and throughput, ready for JSON.

    Raises:
        InputError: settings that do not go with the trace, or a layout that cannot be followed.
    """
    begin = time.perf_counter()
    geometry = geometry_of(trace, settings, num_blocks)
    validator = Validator(geometry, options)
    reader = StepReader(geometry, TokenIdentity(trace), lengths_of(trace), every, validator.run)
    simulate(trace, settings, num_blocks, reader.feed, progress)
    reader.close()
    figures = validator.finish()
    head = {
        "engine": settings.engine,
        "allocator": settings.allocator.kind,
        "trace": trace.name,
        "requests": len(trace),
        "device": device_name(options.device),
        "kernels": "interpreted on sampled steps" if options.device == "cpu" else "compiled",
        "throughput_of": "torch on the CPU" if options.device == "cpu" else "Triton kernels, device events",
        "dtype": options.dtype,
        "layout": "slots" if geometry.slots else options.layout,
        "block_size": settings.allocator.block_size,
        "every": every,
        "steps": reader.steps,
    }
    return head | figures | {"wall_s": time.perf_counter() - begin}


def device_name(device: str) -> str:
    """The name of the hardware, or `cpu`."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"
