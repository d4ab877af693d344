"""Where a setup's step time comes from: settings alone, a model and a GPU, or a table of measured times."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ..sim.latency import StepTime
from ..sim.latency_kinds import overlaps
from ..sim.profile import ProfileStepTime
from ..sim.settings import RooflineSettings, Settings
from ..traces.errors import InputError
from .capacity_gpu import load_gpu
from .capacity_model import load_model
from .capacity_roofline import roofline_coefficients
from .capacity_settings import deployment

Source = dict[str, Any]


def with_step_time(settings: Settings) -> tuple[Settings, StepTime | None, Source | None]:
    """Settle the kind of step time and what it needs.

    Returns:
        The settings with kind and coefficients spelled out, as a run that is repeated should have them; the step time
        where settings do not suffice to make it; and for the summary, which kind it is and where it comes from
        (None for `linear`).

    Raises:
        InputError: something is missing that the kind needs.
    """
    kind = settings.latency.kind
    if kind == "auto":
        return _automatic(settings)
    if kind == "roofline":
        return _roofline(settings)
    if kind == "profile":
        return _profile(settings)
    if kind == "aic":
        return _aic(settings)
    return settings, None, None


def _automatic(settings: Settings) -> tuple[Settings, StepTime | None, Source | None]:
    """Measured operator times where there are some for this model and GPU, else the roofline."""
    from .latency_aic import reason_against

    reason = reason_against(settings)
    if reason is None:
        return _aic(settings)
    settled, timing, source = _roofline(_with_kind(settings, "roofline"))
    return settled, timing, {**(source or {}), "not_aic": reason}


def _roofline(settings: Settings) -> tuple[Settings, None, Source]:
    given = settings.latency.roofline
    if settings.model is not None and settings.gpu is not None:
        derived = roofline_coefficients(load_model(settings.model), load_gpu(settings.gpu), deployment(settings))
        values = {
            field.name: getattr(derived if getattr(given, field.name) is None else given, field.name)
            for field in fields(RooflineSettings)
        }
        roofline = RooflineSettings(**values)
        origin = f"{settings.model} on {settings.gpu}"
    else:
        for name in ("weights_ns", "token_ns"):
            if getattr(given, name) is None:
                raise InputError(
                    f"latency.roofline.{name}: not set, and nothing to derive it from; "
                    "expected it in nanoseconds, or model and gpu"
                )
        roofline, origin = given, "settings"
    # Coefficients that are set win over what model and GPU say.
    set_by_hand = [field.name for field in fields(given) if getattr(given, field.name) is not None]
    source: Source = {"kind": "roofline", "source": origin}
    if set_by_hand and origin != "settings":
        source["set"] = set_by_hand
    return replace(settings, latency=replace(settings.latency, roofline=roofline)), None, source


def _profile(settings: Settings) -> tuple[Settings, StepTime, Source]:
    from .latency_table import read_table

    path = settings.latency.profile
    if path is None:
        raise InputError("latency.profile: not set; expected a table of measured times (CSV or Parquet)")
    table = read_table(path)
    timing = ProfileStepTime(table, settings.latency.roofline.host_ns or 0.0, hidden=overlaps(settings))
    return settings, timing, {"kind": "profile", "source": path}


def _aic(settings: Settings) -> tuple[Settings, StepTime, Source]:
    from .latency_aic import aic_table

    table, origin = aic_table(settings)
    timing = ProfileStepTime(table, settings.latency.roofline.host_ns or 0.0, hidden=overlaps(settings))
    return _with_kind(settings, "aic"), timing, {"kind": "aic", **origin}


def _with_kind(settings: Settings, kind: str) -> Settings:
    return replace(settings, latency=replace(settings.latency, kind=kind))
