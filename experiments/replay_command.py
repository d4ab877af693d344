"""`kvreplay replay`."""

from __future__ import annotations

import argparse
import json
import sys

from ..traces.errors import InputError
from .config import load_settings
from .progress import progress_bar
from .table import summary_table
from .trace_command import add_trace_options, trace_from_args

_MOST_NAMED = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("trace", metavar="TRACE", help="a path (plain, .gz, .zst), - for stdin, or a built-in name")
    add_setting_options(parser)
    add_trace_options(parser)
    parser.add_argument("--out", metavar="DIR", help="write the run folder")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bars or messages")
    parser.add_argument(
        "--layout-log",
        metavar="FILE",
        help="write every step's layout as JSON lines (compressed if named .gz)",
    )
    parser.add_argument(
        "--perfetto", metavar="FILE", help="write a trace for ui.perfetto.dev (compressed if named .gz)"
    )


def add_setting_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that configure a simulation, for every command that runs one."""
    group = parser.add_argument_group("configuration")
    group.add_argument("-c", "--config", metavar="FILE.yaml", help="settings; every key is optional")
    group.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="one setting, on top of the file; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from .replay import replay

    if args.json and "-" in (args.layout_log, args.perfetto):
        raise InputError("--json: stdout holds the summary; give --layout-log and --perfetto a file")
    settings = load_settings(args.config, args.assignments)
    trace = trace_from_args(args)
    with progress_bar("replaying", quiet=args.quiet) as report:
        summary = replay(
            trace,
            settings,
            out=args.out,
            layout_log=args.layout_log,
            perfetto=args.perfetto,
            progress=report,
        )
    if summary["rejected"] and not args.quiet:
        print(_rejections(summary["rejected_requests"]), file=sys.stderr)
    print(json.dumps(summary) if args.json else summary_table(summary))
    return 0


def _rejections(rows: list[int]) -> str:
    named = ", ".join(str(row) for row in rows[:_MOST_NAMED])
    more = f" and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
    return (
        f"rejected: request {named}{more} can never fit (longer than the pool or than max_model_len allows); "
        "the rest was run"
    )
