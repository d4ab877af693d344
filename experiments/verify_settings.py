"""The settings under which a recorded run is replayed."""

from __future__ import annotations

import argparse
import sys

from ..sim.settings import Settings
from ..traces.errors import InputError
from .calibrate_formats import load_recorded
from .calibrate_recorded import Recorded
from .calibrate_replay import with_room
from .config import load_settings

HOLDOUT = 2 / 3
"""Share of the requests, the last ones, that a fit does not look at."""


def add_recorded_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a recorded run and say how to look at it."""
    parser.add_argument(
        "recorded",
        metavar="RECORDED",
        help="a folder with requests.jsonl and workload.jsonl, or a benchmark client's result (vLLM, SGLang)",
    )
    parser.add_argument(
        "--holdout",
        type=float,
        default=HOLDOUT,
        metavar="SHARE",
        help="share of the requests, the last ones, that are not fitted and whose errors are reported (default: 2/3)",
    )
    parser.add_argument("--figure", metavar="FILE", help="draw both sides over time (.png, .svg, .pdf; matplotlib)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bars or messages")


def recorded_from_args(args: argparse.Namespace) -> tuple[Recorded, Settings, int]:
    """Return the run, the settings to replay it under, and how many requests may be fitted.

    What the user sets wins over what the run recorded.
    """
    recorded = load_recorded(args.recorded)
    base = load_settings(None, recorded.settings) if recorded.settings else None
    settings = load_settings(args.config, args.assignments, base)
    settings, assumed = with_room(recorded, settings)
    if not args.quiet:
        for note in (*recorded.notes, *([assumed] if assumed else [])):
            print(note, file=sys.stderr)
    return recorded, settings, fitted_requests(len(recorded), args.holdout)


def fitted_requests(requests: int, holdout: float) -> int:
    """Return how many requests a fit may look at: the first ones."""
    if not 0 <= holdout < 1:
        raise InputError(f"--holdout {holdout}: expected a share of at least 0 and below 1")
    fitted = round(requests * (1 - holdout))
    if fitted < 1:
        raise InputError(f"--holdout {holdout}: leaves none of {requests} requests to fit; expected less")
    # Something must be left to report on; without a holdout, everything is.
    return fitted if fitted < requests else 0
