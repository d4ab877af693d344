"""The benchmark's figure: the achieved share of the ceiling against block size, as an SVG without any library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from xml.sax.saxutils import escape

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
"""Told apart by the colour-blind as well (Paul Tol's bright scheme)."""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 60, 210, 50, 50


def share_figure(found: dict[str, Any]) -> str:
    """Draw the rows of a benchmark; solid lines are the fragmented layout, dashed ones the fresh."""
    rows = [row for row in found["rows"] if row["by"] in ("triton", "torch") and row["operation"] != "slot mapping"]
    sizes = list(dict.fromkeys(row["block_size"] for row in rows))
    operations = list(dict.fromkeys(row["operation"] for row in rows))
    top = max([1.0, *(row["share_of_ceiling"] for row in rows)])
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(sizes) - 1, 1)

    def point(row: dict[str, Any]) -> tuple[float, float]:
        x = _LEFT + sizes.index(row["block_size"]) * step
        return x, _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * row["share_of_ceiling"] / top

    parts = [*_axes(sizes, step, top), _text(_LEFT, 24, f"{found['device']}: share of the measured ceiling", "start")]
    for number, operation in enumerate(operations):
        colour = _COLOURS[number % len(_COLOURS)]
        for layout, dash in (("fragmented", ""), ("fresh", ' stroke-dasharray="5 4"')):
            points = [point(row) for row in rows if row["operation"] == operation and row["layout"] == layout]
            parts.append(_line(points, colour, dash))
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        y = _TOP + 10 + 20 * number
        parts.append(_line([(_WIDTH - _RIGHT + 15, y), (_WIDTH - _RIGHT + 40, y)], colour, ""))
        parts.append(_text(_WIDTH - _RIGHT + 46, y + 4, operation, "start"))
    y = _TOP + 20 + 20 * len(operations)
    parts.append(_text(_WIDTH - _RIGHT + 15, y, "dashed: fresh layout", "start"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _axes(sizes: Sequence[object], step: float, top: float) -> Iterable[str]:
    floor = _HEIGHT - _BOTTOM
    for tenth in range(0, int(top * 10) + 1, 2):
        y = floor - (floor - _TOP) * tenth / 10 / top
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield _text(_LEFT - 8, y + 4, f"{10 * tenth} %", "end")
    for place, size in enumerate(sizes):
        yield _text(_LEFT + place * step, floor + 20, str(size), "middle")
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, "tokens a block", "middle")


def _line(points: Sequence[tuple[float, float]], colour: str, dash: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
