"""The step time that settings ask for."""

from __future__ import annotations

from .latency import LinearStepTime, StepTime
from .roofline import RooflineStepTime
from .settings import Settings, SglangSettings


def step_time(settings: Settings) -> StepTime:
    """Return the step time of the kinds that need nothing but settings: `linear` and `roofline`."""
    if settings.latency.kind == "roofline":
        hidden = overlaps(settings)
        return RooflineStepTime(settings.latency.roofline, async_scheduling=hidden)
    return LinearStepTime(settings.latency)


def overlaps(settings: Settings) -> bool:
    """Whether the engine schedules a step while the one before it runs."""
    scheduler = settings.scheduler
    if isinstance(scheduler, SglangSettings):
        return not scheduler.disable_overlap_schedule
    return scheduler.async_scheduling
