"""`kvreplay compare`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..traces.output import whole_file
from .progress import progress_bar
from .replay_command import add_setting_options
from .run_folder import TIMING
from .trace_command import add_trace_options, trace_from_args


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("trace", metavar="TRACE", help="a path (plain, .gz, .zst), - for stdin, or a built-in name")
    parser.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="FILE.yaml",
        help="one setup, on top of -c; repeatable (default: vLLM and SGLang as they ship)",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B,...",
        help="each setup once with each value; repeatable",
    )
    add_setting_options(parser)
    add_trace_options(parser)
    parser.add_argument("--out", metavar="DIR", help="write a run folder for each setup, and the report over them")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bars or messages")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from .compare import compare
    from .setups import make_setups

    setups = make_setups(args.config, args.assignments, args.setup, args.vary)
    trace = trace_from_args(args)
    with progress_bar("replaying", quiet=args.quiet) as report:
        found = compare(trace, {setup.name: setup.settings for setup in setups}, out=args.out, progress=report)
    if args.out:
        _write(args.out, found, args.quiet)
    print(json.dumps(found) if args.json else comparison_text(found))
    return 0


def comparison_text(found: dict[str, Any]) -> str:
    """Return a comparison as lines of text: the table, and what differs in words."""
    names = [setup["setup"] for setup in found["setups"]]
    cells = [["", *names], *(row[1:] for row in found["rows"])]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = [f"{found['trace']} through {len(names)} setups", "", _line(cells[0], widths)]
    section = ""
    for row in found["rows"]:
        if row[0] != section:
            section = row[0]
            lines += ["", f"  {section}"]
        lines.append(_line(row[1:], widths))
    return "\n".join([*lines, "", *found["differences"]])


def _line(cells: list[str], widths: list[int]) -> str:
    return "  ".join(["", *(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))]).rstrip()


def _write(out: str, found: dict[str, Any], quiet: bool) -> None:
    from .compare import folder_name
    from .report import report

    setups = [{key: value for key, value in setup.items() if key not in TIMING} for setup in found["setups"]]
    with whole_file(f"{out}/comparison.json") as file:
        file.write((json.dumps(found | {"setups": setups}, indent=2) + "\n").encode())
    folders = [Path(out) / folder_name(setup["setup"]) for setup in setups]
    with progress_bar("drawing", quiet=quiet) as progress:
        report(folders, f"{out}/report", progress=progress)
