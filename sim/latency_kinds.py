"""The step time that settings ask for."""

from __future__ import annotations

from .latency import LinearStepTime, StepTime
from .roofline import RooflineStepTime
from .settings import Settings


def step_time(settings: Settings) -> StepTime:
    """Return the step time of the kinds that need nothing but settings: `linear` and `roofline`."""
    if settings.latency.kind == "roofline":
        hidden = settings.scheduler.async_scheduling
        return RooflineStepTime(settings.latency.roofline, async_scheduling=hidden)
    return LinearStepTime(settings.latency)
