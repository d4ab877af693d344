"""`kvreplay plan`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .compare_rows import percent, seconds
from .config import load_settings
from .progress import progress_bar
from .replay_command import add_setting_options
from .trace_command import add_trace_options, trace_from_args


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("trace", metavar="TRACE", help="a path (plain, .gz, .zst), - for stdin, or a built-in name")
    parser.add_argument(
        "--slo", action="append", required=True, metavar="EXPR", help="objective such as ttft_s.p99<2; repeatable"
    )
    parser.add_argument(
        "--vary",
        default="num_blocks",
        metavar="WHAT",
        help="num_blocks: the least memory (default); arrivals.scale: the highest load; replicas: the "
        "fewest engines; KEY=A,B,...: the first of the "
        "values that will do, such as gpu=l4,a100-80gb,h100",
    )
    parser.add_argument(
        "--router",
        choices=("round_robin", "least_loaded", "prefix_aware", "session"),
        default="round_robin",
        help="how requests are sent to replicas (default: round_robin)",
    )
    parser.add_argument(
        "--precision", type=float, default=0.01, metavar="P", help="how close to the bound, as a share (default: 0.01)"
    )
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="replays at a time (default: 1)")
    add_setting_options(parser)
    add_trace_options(parser)
    parser.add_argument("--out", metavar="DIR", help="write plan.json, and the figure with its numbers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bars or messages")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from .plan import plan
    from .plan_slo import read_slo

    slos = [read_slo(text) for text in args.slo]
    vary, values = _varied(args.vary)
    settings = load_settings(args.config, args.assignments)
    trace = trace_from_args(args)
    with progress_bar("replaying", quiet=args.quiet, unit="replays") as report:
        found = plan(
            trace,
            slos,
            settings,
            vary=vary,
            values=values,
            router=args.router,
            precision=args.precision,
            jobs=args.jobs,
            progress=report,
        )
    if args.out:
        _write(args.out, found)
    print(json.dumps(found) if args.json else plan_text(found))
    return 0


def _varied(text: str) -> tuple[str, list[Any]]:
    import yaml

    key, _, listed = text.partition("=")
    return key, yaml.safe_load(f"[{listed}]") if listed else []


def plan_text(found: dict[str, Any]) -> str:
    """Return a plan as lines of text: the answer in words, and the points that were replayed."""
    goals = found["slos"]
    head = [found["vary"], *(goal.partition("<")[0] for goal in goals), "met", "goodput", "preempted", "KV at most"]
    lines = [head]
    for point in found["points"]:
        setting = next(iter(point["setting"].values()))
        lines.append(
            [
                f"{setting:,}" if isinstance(setting, int) else str(setting),
                *(seconds(point["figures"][goal]) for goal in goals),
                "yes" if point["met"] else "no",
                f"{point['goodput_rps']:.2f}/s",
                f"{point['preemptions']:,}",
                percent(point["kv_usage"]["peak"], 1),
            ]
        )
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    table = ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*found["sentences"], "", *(f"  {line}" for line in table)])


def _write(out: str, found: dict[str, Any]) -> None:
    from ..traces.output import whole_file
    from .figures_files import write_plot
    from .figures_grid import plan_points
    from .figures_plot import styled
    from .run_folder import make_folder

    folder = make_folder(out)
    with whole_file(folder / "plan.json") as file:
        file.write((json.dumps(found, indent=2) + "\n").encode())
    with styled():
        write_plot(folder, plan_points(found))
