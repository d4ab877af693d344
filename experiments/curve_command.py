"""`kvreplay curve`."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from ..traces.errors import InputError
from .config import load_settings
from .progress import progress_bar
from .replay_command import add_setting_options
from .size_options import add_size_options, bytes_per_token
from .trace_command import add_trace_options, trace_from_args


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("trace", metavar="TRACE", help="a path (plain, .gz, .zst), - for stdin, or a built-in name")
    parser.add_argument(
        "--block-size", type=int, metavar="N", help="tokens a block (default: the configuration's, which is 16)"
    )
    parser.add_argument(
        "--capacities", type=_numbers, metavar="A,B,...", help="in blocks (default: powers of two up to the ceiling)"
    )
    parser.add_argument("--check", type=int, default=0, metavar="N", help="replay N of the capacities as well")
    parser.add_argument("--no-belady", action="store_true", help="leave out the optimum, which takes longest")
    add_size_options(parser)
    add_setting_options(parser)
    add_trace_options(parser)
    parser.add_argument("--out", metavar="DIR", help="write the curve as JSON, CSV and figure")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bars or messages")


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"--capacities {text}: expected whole numbers with commas between, such as 1024,4096"
        ) from None


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from .curve import curve
    from .curve_check import check_points, spread_out

    if args.check < 0:
        raise InputError(f"--check {args.check}: expected a number of replays, at least 0")
    settings = load_settings(args.config, args.assignments)
    trace = trace_from_args(args)
    begun = time.process_time()
    found = curve(
        trace,
        block_size=settings.allocator.block_size if args.block_size is None else args.block_size,
        capacities=args.capacities,
        bytes_per_token=bytes_per_token(args),
        belady=not args.no_belady,
    )
    found["cpu_s"] = time.process_time() - begun
    if args.check:
        with progress_bar("replaying", quiet=args.quiet) as report:
            sizes = spread_out(found["capacity_blocks"], args.check)
            found["check"] = check_points(trace, settings, sizes, found["block_size"], report)
    if args.out:
        from .curve_files import write_curve

        write_curve(args.out, found)
    print(json.dumps(found) if args.json else curve_table(found))
    return 0


def curve_table(found: dict[str, Any]) -> str:
    """Return a curve as lines of text: a row a capacity, hit rates in per cent of prompt tokens."""
    replayed = {point["capacity_blocks"]: _replayed(point) for point in found.get("check", ())}
    columns: list[tuple[str, list[str]]] = [
        ("blocks", [f"{size:,}" for size in found["capacity_blocks"]]),
        ("tokens", [f"{size:,}" for size in found["capacity_tokens"]]),
    ]
    if "capacity_gib" in found:
        columns.append(("GiB", [f"{size:,.2f}" for size in found["capacity_gib"]]))
    for key, name in _RATES.items():
        if key in found:
            columns.append((name, [_percent(rate) for rate in found[key]]))
    if replayed:
        columns.append(("replay", [replayed.get(size, "-") for size in found["capacity_blocks"]]))
    widths = [max(len(name), *map(len, cells)) for name, cells in columns]
    head = (
        f"{found['trace']}: {found['references']:,} references to {found['distinct_blocks']:,} blocks of "
        f"{found['block_size']} tokens; an infinite cache hits {_percent(found['ceiling_per_token'])} % of prompt "
        f"tokens, {_percent(found['ceiling_per_block'])} % of blocks"
    )
    rows = zip(*([name, *cells] for name, cells in columns), strict=True)
    lines = ["  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([head, "", "  hit rate, % of prompt tokens, by capacity", *lines])


_RATES = {"hit_rate_per_token": "LRU", "leaf_first_per_token": "leaf-first", "belady_per_token": "optimum"}


def _replayed(point: dict[str, Any]) -> str:
    rejected = point["rejected"]
    return _percent(point["prefix_hit_rate"]) + (f" ({rejected:,} rejected)" if rejected else "")


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.2f}"
