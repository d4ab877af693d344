"""Service-level objectives: `ttft_s.p99<2`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..traces.errors import InputError

LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
FIGURES = ("mean", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True)
class Slo:
    """A bound on one figure of one latency."""

    latency: str
    figure: str
    bound: float
    """In seconds."""

    @property
    def text(self) -> str:
        return f"{self.latency}.{self.figure}<{self.bound:g}"

    def value(self, summary: dict[str, Any]) -> float:
        """Return the figure in a summary, s; infinite where requests were rejected or none has it."""
        figure = summary[self.latency][self.figure]
        return float("inf") if figure is None or summary["rejected"] else float(figure)

    def met(self, summary: dict[str, Any]) -> bool:
        """Whether a summary meets it. A request that can never be served breaks every objective."""
        return self.value(summary) < self.bound


def read_slo(text: str) -> Slo:
    """Return the objective that `text` states, such as `ttft_s.p99<2`.

    Raises:
        InputError: it is none.
    """
    found = re.fullmatch(r"\s*(\w+)\.(\w+)\s*<=?\s*([0-9.]+(?:e-?\d+)?)\s*(?:s)?\s*", text)
    if found is None or found[1] not in LATENCIES or found[2] not in FIGURES:
        raise InputError(
            f"--slo {text}: expected LATENCY.FIGURE<SECONDS with one of {', '.join(LATENCIES)} and one of "
            f"{', '.join(FIGURES)}, such as ttft_s.p99<2"
        )
    return Slo(found[1], found[2], _bound(found[3], text))


def _bound(text: str, whole: str) -> float:
    try:
        bound = float(text)
    except ValueError:
        bound = 0.0
    if bound <= 0:
        raise InputError(f"--slo {whole}: {text}: expected a number of seconds above 0")
    return bound
