"""A replay beside the recorded run, as lines of text."""

from __future__ import annotations

from typing import Any

from .verify_errors import FIGURES, METRICS

_NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


def verify_table(comparison: dict[str, Any], name: str) -> str:
    """Return recorded and simulated figures side by side, and how far they are apart."""
    held = comparison["not_fitted"]
    everything = comparison["requests"]
    lines = [
        f"{name}: {everything} requests; latencies count from {_FROM[comparison['measured_from']]}",
        "",
        f"  {'':<12}{'recorded':>12}{'simulated':>12}{f'last {held}':>12}{f'all {everything}':>12}",
    ]
    for metric in METRICS:
        for figure in FIGURES:
            real, simulated = (comparison[side][metric][figure] for side in ("recorded", "simulated"))
            errors = [_percent(comparison[span][metric][figure]) for span in ("errors", "errors_all")]
            lines.append(
                f"  {_NAMES[metric] + ' ' + figure:<12}{_time(real):>12}{_time(simulated):>12}"
                f"{errors[0]:>12}{errors[1]:>12}"
            )
    speed = comparison["throughput_tokens_s"]
    lines += ["", f"  tokens/s    {speed['recorded']:>12,.0f}{speed['simulated']:>12,.0f}"]
    differences = {
        "KV usage": (comparison["errors"]["kv_usage_points"], "percentage points"),
        "running": (comparison["running_difference"], "requests"),
        "waiting": (comparison["waiting_difference"], "requests"),
    }
    for what, (value, unit) in differences.items():
        if value is not None:
            lines.append(f"  {what + ' over time':<20}  off by {value:.2f} {unit} on average")
    return "\n".join(lines)


_FROM = {"queued": "the engine's taking in of a request", "arrival": "the client's sending of a request"}


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:.2f} ms"


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.2f} %"
