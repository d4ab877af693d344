"""Step times from operator times that NVIDIA measured: aiconfigurator-core, sampled once into a table.

The library holds times of GEMMs, attention, MoE and all-reduce kernels, measured under vLLM, SGLang and TensorRT-LLM on
a number of GPUs, and puts a model's step together from them. It is asked for a grid of compositions, and the replay
interpolates in the answers; a table is kept on disk and made once for each model, GPU and version.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..sim.profile import Table
from ..sim.settings import Settings
from ..traces.errors import InputError
from ..traces.output import whole_file
from .capacity_gpu import load_gpu
from .capacity_model import load_model
from .capacity_settings import deployment
from .latency_table import Row, csv_text, read_table

_SYSTEMS = {
    "NVIDIA A100 80GB": "a100_sxm",
    "NVIDIA H100 80GB": "h100_sxm",
    "NVIDIA H200": "h200_sxm",
    "NVIDIA B200": "b200_sxm",
    "NVIDIA L40S": "l40s",
    "NVIDIA RTX PRO 6000 Blackwell": "rtx_pro_6000_server",
}
"""GPUs of which the library has measured times, by the names of our presets."""

_MODELS = {
    "meta-llama/Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    # The same architecture.
    "meta-llama/Llama-3.3-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "Qwen/Qwen3-8B": "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen/Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B",
    "mistralai/Mixtral-8x7B-v0.1": "mistralai/Mixtral-8x7B-v0.1",
    "openai/gpt-oss-120b": "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3": "deepseek-ai/DeepSeek-V3",
}
"""Models that the library has a configuration of, by the names of our presets."""

_TOKENS = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
    96,
    128,
    160,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    3072,
    4096,
    6144,
    8192,
    16384,
)
_CHUNKS = (1, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_BEHIND = (0, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_CONTEXTS = (16, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


def reason_against(settings: Settings) -> str | None:
    """Return why there are no measured times for these settings; None where there are."""
    try:
        import aiconfigurator_core  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return "aiconfigurator-core is not installed (pip install 'kvreplay[aic]')"
    if settings.model is None or settings.gpu is None:
        return "model and gpu are not both set"
    gpu, model = load_gpu(settings.gpu).name, load_model(settings.model).name
    if gpu not in _SYSTEMS:
        return f"aiconfigurator-core has no measured times of {gpu}; it has of {', '.join(_SYSTEMS)}"
    if model not in _MODELS:
        return f"aiconfigurator-core has no configuration of {model}; it has of {', '.join(_MODELS)}"
    if (settings.pipeline_parallel or 1) > 1:
        return "pipeline parallelism is not modelled"
    return None


def aic_table(settings: Settings) -> tuple[Table, dict[str, Any]]:
    """Return the table of these settings' step times, and where it comes from.

    Raises:
        InputError: the library is absent, does not know model or GPU, or has no data for them.
    """
    reason = reason_against(settings)
    if reason is not None:
        raise InputError(f"latency.kind: aic: {reason}; expected latency.kind: roofline, or auto")
    assert settings.model is not None and settings.gpu is not None
    from importlib.metadata import version

    laid = deployment(settings)
    asked = {
        "model": _MODELS[load_model(settings.model).name],
        "system": _SYSTEMS[load_gpu(settings.gpu).name],
        "backend": settings.engine,
        "tensor_parallel": laid.tensor_parallel,
        "kv_cache_dtype": laid.kv_cache_dtype,
    }
    origin = {"source": f"aiconfigurator-core {version('aiconfigurator-core')}", **asked}
    key = hashlib.sha256(repr((origin, _TOKENS, _CHUNKS, _BEHIND, _SEQUENCES, _CONTEXTS)).encode()).hexdigest()[:16]
    path = _cache_folder() / f"aic-{key}.csv"
    if not path.exists():
        rows = list(_sample(asked))
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(csv_text(rows, [f"{name}: {value}" for name, value in origin.items()]).encode())
    return read_table(str(path)), {**origin, "table": path.name}


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "kvreplay"


def _sample(asked: dict[str, Any]) -> Iterator[Row]:
    """Ask the library for every place of the grid."""
    from aiconfigurator_core.sdk.engine import EngineHandle  # pyright: ignore[reportMissingImports]

    parallel = asked["tensor_parallel"]
    options: dict[str, Any] = {"tp_size": parallel, "moe_tp_size": parallel}
    if asked["kv_cache_dtype"] == "fp8":
        options["kvcache_quant_mode"] = "fp8"
    try:
        engine = EngineHandle.compile(asked["model"], asked["system"], asked["backend"], **options)
        yield from _rows(engine)
    except Exception as error:  # The library raises many kinds, its own and those of its native part.
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"latency.kind: aic: aiconfigurator-core cannot time {asked['model']} on {asked['system']} "
            f"with tensor_parallel {parallel}: {problem}; expected latency.kind: roofline"
        ) from None


def _rows(engine: Any) -> Iterator[Row]:
    for tokens in _TOKENS:
        # Of a step that mixes: all, shared non-attention, prefill attention, decode attention, in ms.
        shared = engine.mixed_step_breakdown(tokens, 0, max(tokens, 1), 2)[1]
        yield "dense", tokens, 0, 1000 * shared
    for tokens in _CHUNKS:
        for behind in _BEHIND:
            attention = engine.mixed_step_breakdown(tokens, 0, behind + tokens, 2, behind)[2]
            yield "prefill", tokens, behind, 1000 * attention
    for sequences in _SEQUENCES:
        for context in _CONTEXTS:
            attention = engine.mixed_step_breakdown(0, sequences, context, 2)[3]
            yield "decode", sequences, context, 1000 * attention
