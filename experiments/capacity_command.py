"""`kvreplay capacity`: what fits, for models and GPUs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from ..traces.errors import InputError
from ..traces.load import load_trace
from .capacity_backends import preferred_block_size
from .capacity_gpu import Gpu, load_gpu
from .capacity_memory import Deployment
from .capacity_model import load_model
from .capacity_presets import preset_names
from .capacity_rows import capacity_row, lengths, with_engine_defaults

_GIB = 1 << 30


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--model", metavar="A,B", help="presets or Hugging Face config.json files (default: all presets)"
    )
    parser.add_argument("--gpu", metavar="A,B", help="presets or YAML files as in the presets (default: all presets)")
    parser.add_argument("--tp", metavar="N,M", default="1", help="tensor parallelism (default: 1)")
    parser.add_argument("--pp", type=int, default=1, metavar="N", help="pipeline parallelism (default: 1)")
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm", help="whose rules (default: vllm)")
    parser.add_argument("--trace", metavar="TRACE", help="how many of its requests fit at once; as for replay")
    parser.add_argument(
        "--block-size", type=int, metavar="N", help="tokens a block (default: what the backend prefers)"
    )
    parser.add_argument("--attention-backend", metavar="NAME", help="by which the block size goes")
    parser.add_argument("--kv-cache-dtype", choices=("auto", "fp8"), default="auto", help="auto is 16 bits")
    parser.add_argument("--gpu-memory-utilization", type=_share, metavar="X", help="vLLM (default: 0.92)")
    parser.add_argument("--mem-fraction-static", type=_share, metavar="X", help="SGLang (default: its own rule)")
    parser.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="vLLM (default: by GPU memory)")
    parser.add_argument("--max-num-seqs", type=int, metavar="N", help="vLLM (default: by GPU memory)")
    parser.add_argument("--reserve-gib", type=float, metavar="X", help="vLLM: activations, graphs, context a GPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no messages")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    models = [load_model(name, "--model") for name in _names(args.model, "models")]
    gpus = [load_gpu(name, "--gpu") for name in _names(args.gpu, "gpus")]
    parallel = [_whole(text, "--tp") for text in args.tp.split(",")]
    for option in ("pp", "block_size", "max_num_batched_tokens", "max_num_seqs"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise InputError(f"--{option.replace('_', '-')} {value}: expected a whole number of at least 1")
    long = None if args.trace is None else lengths(load_trace(args.trace))
    rows: list[dict[str, Any]] = []
    for model in models:
        for gpu in gpus:
            for tensor_parallel in parallel:
                laid = _deployment(args, gpu, tensor_parallel)
                size = args.block_size or preferred_block_size(
                    args.engine, args.attention_backend, gpu.compute_capability, model.latent > 0
                )
                rows.append(capacity_row(model, gpu, laid, size, long))
    if args.json:
        print(json.dumps({"rows": rows}))
    else:
        print(_table(rows))
    if long is not None and not args.quiet and not args.json:
        print(f"requests of {long.mean:,} (mean) and {long.p95:,} (p95) tokens", file=sys.stderr)
    return 0


def _deployment(args: argparse.Namespace, gpu: Gpu, tensor_parallel: int) -> Deployment:
    laid = Deployment(
        engine=args.engine,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=args.pp,
        kv_cache_dtype=args.kv_cache_dtype,
        gpu_memory_utilization=args.gpu_memory_utilization,
        mem_fraction_static=args.mem_fraction_static,
        reserve_gib=args.reserve_gib,
    )
    laid = with_engine_defaults(laid, gpu)
    tokens = args.max_num_batched_tokens or laid.max_num_batched_tokens
    return replace(laid, max_num_batched_tokens=tokens, max_num_seqs=args.max_num_seqs or laid.max_num_seqs)


def _table(rows: list[dict[str, Any]]) -> str:
    named = ("model", "gpu")
    widths = {name: max(len(row[name]) for row in rows) for name in named}
    head = "  ".join(f"{name:<{widths[name]}}" for name in named)
    head += f"  {'TP':>3}{'KiB/token':>11}{'weights':>10}{'KV cache':>10}{'block':>7}{'blocks':>11}{'tokens':>13}"
    counts = ("block_pool", "paged_slots", "token_slots", "contiguous")
    if "requests" in rows[0]:
        head += "  requests at once, mean / p95: " + ", ".join(counts)
    lines = [head]
    for row in rows:
        line = "  ".join(f"{row[name]:<{widths[name]}}" for name in named)
        line += f"  {row['tensor_parallel']:>3}{row['bytes_per_token'] / 1024:>11,.1f}{_gib(row['weight_bytes']):>10}"
        if row["problem"] is not None:
            lines.append(line + "  does not fit")
            continue
        line += f"{_gib(row['kv_bytes']):>10}{row['block_size']:>7}{row['num_blocks']:>11,}{row['tokens']:>13,}"
        if "requests" in row:
            fits = row["requests"]
            line += "  " + ", ".join(f"{fits['mean'][name]:,} / {fits['p95'][name]:,}" for name in counts)
        lines.append(line)
    return "\n".join(lines)


def _gib(value: float) -> str:
    return f"{value / _GIB:,.1f} G"


def _names(text: str | None, kind: str) -> list[str]:
    return preset_names(kind) if text is None else [name for name in text.split(",") if name]


def _whole(text: str, option: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{option} {text}: expected whole numbers of at least 1, separated by commas")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and at most 1, got {text!r}")
    return value
