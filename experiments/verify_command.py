"""`kvreplay verify`: hold a replay against a recorded run."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from ..sim.settings import Settings
from .calibrate_recorded import Recorded
from .calibrate_replay import replay_recorded
from .latency_source import with_step_time
from .replay_command import add_setting_options
from .verify_errors import compare
from .verify_settings import add_recorded_options, recorded_from_args
from .verify_table import verify_table


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_recorded_options(parser)
    add_setting_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    recorded, settings, fitted = recorded_from_args(args)
    report(args, recorded, settings, fitted, {})
    return 0


def report(
    args: argparse.Namespace, recorded: Recorded, settings: Settings, fitted: int, more: dict[str, Any]
) -> dict[str, Any]:
    """Replay, compare, draw and print; `more` goes into the JSON object. Returns the comparison."""
    settings, _, source = with_step_time(settings)
    replayed = replay_recorded(recorded, settings)
    comparison = compare(recorded, replayed, fitted)
    if args.figure is not None:
        from .verify_figure import draw

        draw(recorded, replayed, args.figure)
    found = {"coefficients": coefficients(settings), "step_time": source, **more, **comparison}
    print(json.dumps(found) if args.json else verify_table(comparison, recorded.name))
    return found


def coefficients(settings: Settings) -> dict[str, float]:
    """Return the coefficients of the step time that are set, in nanoseconds; none for a table."""
    latency = settings.latency
    if latency.kind == "linear":
        names = ("base_ns", "prefill_token_ns", "decode_seq_ns", "context_token_ns")
        return {name: getattr(latency, name) for name in names}
    if latency.kind == "roofline":
        return {name: value for name, value in asdict(latency.roofline).items() if value is not None}
    return {}
