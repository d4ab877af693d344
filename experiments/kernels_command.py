"""`kvreplay kernels`: prove a replay's layout on real memory, and measure the hardware with it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from dataclasses import replace
from typing import Any

from ..sim.settings import Settings
from ..traces.errors import InputError
from .config import engine_capacity, load_settings, with_capacity
from .progress import progress_bar
from .replay_command import add_setting_options
from .trace_command import add_trace_options, trace_from_args

_NEEDED = ("torch", "triton")
_BLOCK_SIZES = (1, 16, 32, 64, 128)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `kvreplay kernels`."""
    commands = parser.add_subparsers(dest="kernels_command", required=True, metavar="COMMAND")
    _configure_validate(commands)
    _configure_bench(commands)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand that was parsed; returns the exit status: 1 where a validation found a difference."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} not installed; expected the extra: pip install 'kvreplay[kernels]'")
    args.device = _device(args.device)
    return args.run_kernels(args)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="cuda compiles the kernels; cpu interprets them and runs plain torch (default: cuda if there is one)",
    )
    parser.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), default="bf16", help="of K and V (default: bf16)")
    parser.add_argument(
        "--kv-layout",
        choices=("packed", "separate"),
        default="packed",
        help="of paged K and V: one tensor [blocks, heads, block_size, 2 * head_size], or two "
        "[blocks, block_size, heads, head_size] (default: packed)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bars or messages")


def _device(name: str) -> str:
    """The device to run on. Where it is a CPU, Triton is told so: it decides at import whether it interprets."""
    import torch  # pyright: ignore[reportMissingImports]

    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise InputError("--device cuda: torch finds no CUDA device; expected one, or --device cpu")
    if name == "cpu" or not there:
        os.environ["TRITON_INTERPRET"] = "1"
        return "cpu"
    return "cuda"


# -- validate


def _configure_validate(commands: Any) -> None:
    about = (
        "Replay a trace and do what an engine's worker does with its layout: apply new ids to the tables, compute the "
        "slot mapping, write K and V of each token, read all of it back. Exit status 1 if anything is not as it should."
    )
    parser = commands.add_parser("validate", help="check every slot of a replay's layout", description=about)
    parser.add_argument("trace", metavar="TRACE", help="a path (plain, .gz, .zst), - for stdin, or a built-in name")
    add_setting_options(parser)
    add_trace_options(parser)
    _add_common(parser)
    parser.add_argument(
        "--every", type=int, metavar="N", help="run the kernels on every N-th step (default: by the trace's length)"
    )
    parser.add_argument("--out", metavar="DIR", help="write validate.json there")
    parser.set_defaults(run_kernels=_validate)


def _validate(args: argparse.Namespace) -> int:
    if args.every is not None and args.every < 1:
        raise InputError(f"--every: expected a number of steps of at least 1, got {args.every}")
    from ..kernels.validate import default_every, validate
    from ..kernels.validator import Options
    from .replay import BUILTIN_CAPACITY_TOKENS

    settings = load_settings(args.config, args.assignments)
    trace = trace_from_args(args)
    blocks = engine_capacity(settings, BUILTIN_CAPACITY_TOKENS.get(trace.name))
    options = Options(device=args.device, dtype=args.dtype, layout=args.kv_layout)
    if args.device == "cpu":
        # The tensors of a step are too small to share among threads.
        import torch  # pyright: ignore[reportMissingImports]

        torch.set_num_threads(1)
    with progress_bar("validating", quiet=args.quiet) as report:
        every = args.every or default_every(trace, args.device)
        found = validate(trace, with_capacity(settings, blocks), blocks, options, every, report)
    for difference in found["first_differences"] if not args.quiet else ():
        print(_named(difference), file=sys.stderr)
    if args.out:
        _write_json(args.out, "validate.json", found)
    print(json.dumps(found) if args.json else _validation_table(found))
    return 0 if found["ok"] else 1


# -- bench


def _configure_bench(commands: Any) -> None:
    about = (
        "Measure slot mapping, writing, gathering and attention on layouts out of replays, fragmented by evictions, "
        "and on fresh ones, against a copy and a matrix product measured in the same run."
    )
    parser = commands.add_parser("bench", help="measure throughput on replayed layouts", description=about)
    parser.add_argument("trace", metavar="TRACE", nargs="?", default="sample", help="(default: sample)")
    add_trace_options(parser)
    _add_common(parser)
    parser.add_argument(
        "--block-sizes",
        metavar="A,B,...",
        default=",".join(map(str, _BLOCK_SIZES)),
        help="tokens a block; SGLang's per-token layout comes on top (default: %(default)s)",
    )
    parser.add_argument("--capacity-tokens", type=int, metavar="N", help="of the pool (default: by the device)")
    parser.add_argument("--out", metavar="DIR", help="write bench.json, bench.parquet and bench.svg there")
    parser.set_defaults(run_kernels=_bench)


def _bench(args: argparse.Namespace) -> int:
    from ..kernels.bench import SHAPES, bench

    shape = SHAPES[args.device]
    if args.capacity_tokens is not None:
        if args.capacity_tokens < 1024:
            raise InputError(f"--capacity-tokens: expected at least 1024, got {args.capacity_tokens}")
        shape = replace(shape, capacity_tokens=args.capacity_tokens)
    cases = _bench_cases(args.block_sizes, shape.capacity_tokens)
    trace = trace_from_args(args)
    with progress_bar("measuring", quiet=args.quiet) as report:
        found = bench(trace, cases, args.device, args.dtype, args.kv_layout, shape, report)
    if args.out:
        _write_bench(args.out, found)
    print(json.dumps(found) if args.json else _bench_table(found))
    return 0


def _bench_cases(block_sizes: str, capacity_tokens: int) -> list[tuple[int | str, Settings, int]]:
    """Every block size under vLLM's scheduler, and slots under SGLang's, with all requests there at once."""
    from ..kernels.bench import PER_TOKEN

    crowd = (f"allocator.capacity_tokens={capacity_tokens}", "arrivals.scale=1000000.0")
    setups: list[tuple[int | str, tuple[str, ...]]] = []
    for text in block_sizes.split(","):
        if not text.strip().isdigit() or not 1 <= int(text) <= 256:
            raise InputError(f"--block-sizes: expected whole numbers of 1 to 256, got {block_sizes!r}")
        setups.append((int(text), (f"allocator.block_size={int(text)}",)))
    setups.append((PER_TOKEN, ("engine=sglang",)))
    cases = []
    for name, assignments in setups:
        settings = load_settings(None, [*assignments, *crowd])
        capacity = engine_capacity(settings)
        cases.append((name, with_capacity(settings, capacity), capacity))
    return cases


def _write_bench(folder: str, found: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ..kernels.figure import share_figure
    from ..traces.output import whole_file
    from .run_folder import make_folder

    _write_json(folder, "bench.json", found)
    rows = [row | {"block_size": str(row["block_size"])} for row in found["rows"]]
    with whole_file(make_folder(folder) / "bench.parquet") as file:
        pq.write_table(pa.Table.from_pylist(rows), file)
    with whole_file(make_folder(folder) / "bench.svg") as file:
        file.write(share_figure(found).encode())


def _bench_table(found: dict[str, Any]) -> str:
    ceilings = found["ceilings"]
    lines = [
        f"{found['measured']} ({found['device']}), {found['dtype']}, {found['query_heads']} query heads and "
        f"{found['kv_heads']} KV heads of {found['head_size']}, a pool of {found['capacity_tokens']:,} tokens",
        f"ceilings: copy {ceilings['copy_gb_per_s']:,.1f} GB/s read plus written, "
        f"matrix product {ceilings['matmul_tflop_per_s']:,.2f} TFLOP/s",
        "",
        f"  {'operation':<18}{'by':<27}{'block':>10}  {'layout':<11}{'tokens/s':>10}{'GB/s':>9}"
        f"{'TFLOP/s':>9}{'share':>8}",
    ]
    for row in sorted(found["rows"], key=lambda row: row["operation"]):
        rates = [f"{row[key]:>9,.4g}" if row[key] is not None else f"{'':>9}" for key in ("gb_per_s", "tflop_per_s")]
        lines.append(
            f"  {row['operation']:<18}{row['by']:<27}{row['block_size']:>10}  {row['layout']:<11}"
            f"{row['tokens_per_s']:>10,.3g}{''.join(rates)}{100 * row['share_of_ceiling']:>7.1f}%"
        )
    return "\n".join(lines)


# -- both


def _named(difference: dict[str, Any]) -> str:
    from ..kernels.findings import Difference

    return str(Difference(**difference))


def _write_json(folder: str, name: str, found: dict[str, Any]) -> None:
    from ..traces.output import whole_file
    from .run_folder import make_folder

    with whole_file(make_folder(folder) / name) as file:
        file.write(json.dumps(found, indent=1).encode() + b"\n")


def _validation_table(found: dict[str, Any]) -> str:
    rows = [
        ("steps", f"{found['steps']:,}, kernels on {found['steps_checked']:,} ({found['kernels']})"),
        ("tokens written", f"{found['tokens_written']:,}"),
        ("slot mappings", f"{found['slots_checked']:,}, {'all equal' if found['slots_equal'] else 'DIFFERENT'}"),
        ("fingerprints", f"{found['tokens_checked']:,} read back, {found['fingerprints_wrong']:,} wrong"),
        (
            "shared prefixes",
            f"{found['prefix_tokens_checked']:,} hit tokens read by who hit them, "
            f"{found['shared_blocks_checked']:,} shared blocks",
        ),
        ("null block", f"{found['reserved_writes']:,} writes"),
        (
            "attention",
            f"{found['attention_checked']:,} outputs, error {found['attention_error_max']:.2g} at most, "
            f"{found['attention_error_to_torch_max']:.2f} of torch's at most (2 allowed)",
        ),
        ("took", f"{found['wall_s']:.1f} s"),
    ]
    lines = [f"{found['trace']} on {found['engine']} ({found['allocator']}), {found['device']}", ""]
    lines += [f"  {name:<16}  {text}" for name, text in rows]
    lines += ["", f"  throughput of {found['throughput_of']}", f"  {'':<18}{'tokens':>14}{'tokens/s':>14}{'GB/s':>10}"]
    for name, figures in found["throughput"].items():
        rates = f"{figures['tokens_per_s']:>14,.3g}{figures['bytes_per_s'] / 1e9:>10.3g}"
        lines.append(f"  {name:<18}{figures['tokens']:>14,}{rates}")
    verdict = "every token is in its own slot" if found["ok"] else f"DIFFERENCES: {found['differences']}"
    return "\n".join([*lines, "", f"  {verdict}"])
