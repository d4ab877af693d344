"""`kvreplay report`."""

from __future__ import annotations

import argparse
import json

from .progress import progress_bar
from .size_options import add_size_options, bytes_per_token


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folders", nargs="+", metavar="DIR", help="run folders, as `replay --out` leaves them")
    parser.add_argument("--out", metavar="DIR", default="report", help="where to write (default: report)")
    parser.add_argument(
        "--slo", action="append", default=[], metavar="EXPR", help="an objective to draw, as ttft_s.p99<2; repeatable"
    )
    add_size_options(parser)
    parser.add_argument("--no-bounds", action="store_true", help="leave out optimum and ceiling, which read the trace")
    parser.add_argument("--json", action="store_true", help="print the paths as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bars or messages")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from .plan_slo import read_slo
    from .report import report

    slos = [read_slo(text) for text in args.slo]
    with progress_bar("drawing", quiet=args.quiet) as progress:
        path = report(
            args.folders,
            args.out,
            slos=[(slo.latency, slo.figure, slo.bound) for slo in slos],
            bytes_per_token=bytes_per_token(args),
            bounds=not args.no_bounds,
            progress=progress,
        )
    print(json.dumps({"page": str(path), "folder": args.out}) if args.json else path)
    return 0
