"""Bracketing and bisection over replays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .plan_axes import Axis
from .plan_point import Point, Value

Evaluate = Callable[[Sequence[Value]], list[Point]]


def search(axis: Axis, evaluate: Evaluate, jobs: int) -> list[Point]:
    """Find where the objectives begin to be met; return all points that were replayed, from hard to easy.

    From the start, values get twice as easy until one meets the objectives (or twice as hard until one does not); the
    stretch between is then cut into `jobs` + 1 parts, again and again. If the start meets them and nothing harder is in
    range, it is the only point.

    Args:
        axis: what is varied.
        evaluate: replays several values at once.
        jobs: how many of them.
    """
    points = {axis.start: evaluate([axis.start])[0]}
    point = points[axis.start]
    toward_easy = not point.met
    while True:
        value = axis.easier(point) if toward_easy else axis.harder(point)
        if value is None:
            break
        point = points[value] = evaluate([value])[0]
        if point.met == toward_easy:
            break
    while True:
        hard, easy = bracket(axis, list(points.values()))
        values = [] if hard is None or easy is None else axis.between(hard.value, easy.value, jobs)
        values = [value for value in values if value not in points]
        if not values:
            return ordered(axis, list(points.values()))
        points |= {point.value: point for point in evaluate(values)}


def ordered(axis: Axis, points: Sequence[Point]) -> list[Point]:
    """Return the points from hard to easy."""
    return sorted(points, key=lambda point: axis.ease(point.value))


def bracket(axis: Axis, points: Sequence[Point]) -> tuple[Point | None, Point | None]:
    """Return the easiest point that fails, and the hardest one that is easier than it, which is the answer."""
    failed: Point | None = None
    answer: Point | None = None
    for point in ordered(axis, points):
        if not point.met:
            failed, answer = point, None
        elif answer is None:
            answer = point
    return failed, answer


def monotone(axis: Axis, points: Sequence[Point]) -> bool:
    """Whether no point meets the objectives that an easier one misses."""
    met = [point.met for point in ordered(axis, points)]
    return met == sorted(met)
