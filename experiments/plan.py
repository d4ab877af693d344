"""`plan`: the least memory, the highest load, or the first of several choices that meets objectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from ..sim.settings import Settings
from ..traces.errors import InputError
from ..traces.trace import Trace
from .plan_axes import Axis, Capacity, Listed, Load, Replicas
from .plan_point import Point, Value, evaluate, with_capacity_tokens
from .plan_search import bracket, monotone, search
from .plan_slo import Slo, read_slo
from .plan_words import plan_sentences
from .replay import BUILTIN_CAPACITY_TOKENS

_MOST_POINTS = 64
"""A guess of how many replays there will be, for progress."""
_MOST_REPLICAS = 64
_MOSTLY = 0.5
"""Share of preempted requests from which on preemption is the cause of slow decoding."""


def plan(
    trace: Trace,
    slos: Sequence[str | Slo],
    settings: Settings | None = None,
    *,
    vary: str = "num_blocks",
    values: Sequence[Value] = (),
    router: str = "round_robin",
    precision: float = 0.01,
    jobs: int = 1,
    progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, Any]:
    """Find the smallest capacity, or the highest load, whose replay meets all objectives.

    Args:
        trace: from `load_trace`.
        slos: objectives such as `ttft_s.p99<2`.
        settings: of the engine; the defaults if None. Their capacity is passed over where capacity is varied.
        vary: `num_blocks`, `arrivals.scale`, `replicas`, or any key with `values`.
        values: of the key, the most wanted first.
        router: where replicas are varied: a key of `ROUTERS`.
        precision: the answer is at most so much (as a share) from a value that does not meet the objectives.
        jobs: replays at a time, each in a process of its own where there are several.
        progress: called with the replays done.

    Returns:
        `met`; `answer` (the setting, None if nothing meets them) and `nearest`; `binding` (the objective that decides)
        and `why`; `below` and `above`, the replays on either side; `monotone`; `points`, all replays from hard to easy;
        `sentences` for people. Ready for JSON.

    Raises:
        InputError: an objective or key that does not exist, or no capacity where none is varied.
    """
    goals = [read_slo(slo) if isinstance(slo, str) else slo for slo in slos]
    if not goals:
        raise InputError("--slo: expected at least one objective, such as ttft_s.p99<2")
    axis = _axis(trace, settings or Settings(), vary, values, precision)
    done = 0

    def replays(wanted: Sequence[Value]) -> list[Point]:
        nonlocal done
        points = _evaluate(trace, axis, wanted, goals, jobs, router)
        done += len(points)
        if progress is not None:
            progress(done, max(_MOST_POINTS, done))
        return points

    points = search(axis, replays, 1 if isinstance(axis, Listed) else max(jobs, 1))
    failed, answer = bracket(axis, points)
    decides = failed or points[0]
    result: dict[str, Any] = {
        "met": answer is not None,
        "vary": vary,
        "slos": [slo.text for slo in goals],
        "answer": None if answer is None else axis.answer(answer.value),
        "nearest": axis.answer(_nearest(points, goals).value),
        "binding": decides.binding,
        "why": why(decides),
        "below": None if failed is None else failed.as_dict(),
        "above": None if answer is None else answer.as_dict(),
        "monotone": monotone(axis, points),
        "points": [point.as_dict() | {"setting": axis.answer(point.value)} for point in points],
    }
    return result | {"sentences": plan_sentences(result)}


def _axis(trace: Trace, settings: Settings, vary: str, values: Sequence[Value], precision: float) -> Axis:
    if not 0 <= precision < 1:
        raise InputError(f"--precision {precision}: expected a share from 0 to 1, such as 0.01")
    if vary in ("num_blocks", "capacity") and not values:
        return cast(Axis, Capacity(settings, trace, precision))
    if vary == "arrivals.scale" and not values:
        return cast(Axis, Load(_with_some_capacity(trace, settings), precision))
    if vary == "replicas" and not values:
        return cast(Axis, Replicas(_with_some_capacity(trace, settings), _MOST_REPLICAS))
    if not values:
        raise InputError(
            f"--vary {vary}: expected num_blocks, arrivals.scale, replicas, or any key with values: {vary}=a,b,..."
        )
    return Listed(_with_some_capacity(trace, settings), vary, values)


def _with_some_capacity(trace: Trace, settings: Settings) -> Settings:
    """The settings, with the capacity that comes with a built-in trace where they have none."""
    allocator = settings.allocator
    given = allocator.num_blocks or allocator.num_slots or allocator.capacity_tokens or settings.model
    built_in = BUILTIN_CAPACITY_TOKENS.get(trace.name)
    return settings if given or built_in is None else with_capacity_tokens(settings, built_in)


def _evaluate(
    trace: Trace, axis: Axis, values: Sequence[Value], slos: Sequence[Slo], jobs: int, router: str
) -> list[Point]:
    fleets = isinstance(axis, Replicas)
    work = [(trace, axis.settings(value), value, slos, int(value) if fleets else 1, router) for value in values]
    if jobs == 1 or len(work) == 1:
        return [evaluate(*arguments) for arguments in work]
    from joblib import Parallel, delayed

    return cast(list[Point], Parallel(jobs)(delayed(evaluate)(*arguments) for arguments in work))


def _nearest(points: Sequence[Point], slos: Sequence[Slo]) -> Point:
    """The point whose worst figure is the least beyond its bound."""

    def worst(point: Point) -> float:
        figures = [(point.figures[slo.text], slo.bound) for slo in slos]
        return max(float("inf") if figure is None else figure / bound for figure, bound in figures)

    return min(points, key=lambda point: (worst(point), point.summary["rejected"]))


def why(point: Point) -> str:
    """Return what holds a point back: preemption, queueing, prefill, decode or rejections; nothing if it is met."""
    if point.met:
        return ""
    causes = point.causes
    if not causes:
        return "rejections" if point.summary["rejected"] else ""
    if not point.binding.startswith(("ttft_s", "queue_s")) and causes["preempted"] >= _MOSTLY:
        return "preemption"
    return max((part for part in ("queueing", "prefill", "decode") if part in causes), key=lambda part: causes[part])
