"""`kvreplay kernels`: prove a replay's layout on real memory, and measure the hardware with it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from typing import Any

from ..traces.errors import InputError
from .config import engine_capacity, load_settings, with_capacity
from .progress import progress_bar
from .replay_command import add_setting_options
from .trace_command import add_trace_options, trace_from_args

_NEEDED = ("torch", "triton")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `kvreplay kernels`."""
    commands = parser.add_subparsers(dest="kernels_command", required=True, metavar="COMMAND")
    _configure_validate(commands)


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
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bars or messages")


def _device(name: str) -> str:
    """The device to run on. Where it is a CPU, Triton is told so: it decides at import whether it interprets."""
    import torch

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
    parser.add_argument(
        "--kv-layout",
        choices=("packed", "separate"),
        default="packed",
        help="of paged K and V: one tensor [blocks, heads, block_size, 2 * head_size], or two "
        "[blocks, block_size, heads, head_size] (default: packed)",
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
        import torch

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
