"""Figures that remember what they show: one style, and every drawn number as a row of a table.

Colours are Okabe and Ito's, which can be told apart with any kind of colour vision; runs differ by line style as well.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

Values = npt.NDArray[Any]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":")
INK = "#2f2f2f"
"""Text and axes; a page replaces it with its own text colour."""
_POINTS = 400
"""Of a line, at most: more cannot be seen, and the page stays small."""
_WIDTH = 8.0
_LETTERS = 110
"""Of a legend's text across that width."""
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "kvreplay",
    **dict.fromkeys(
        (
            "text.color",
            "axes.labelcolor",
            "axes.edgecolor",
            "axes.titlecolor",
            "xtick.color",
            "ytick.color",
            "grid.color",
            "legend.labelcolor",
        ),
        INK,
    ),
}


def styled() -> AbstractContextManager[None]:
    """The style of all figures, while they are made."""
    return rc_context(_STYLE)


class Plot:
    """One figure, of panels in a grid; to be made and drawn in `styled`.

    Attributes:
        name: of its files.
        title: for people.
        note: what it shows and how to read it.
        rows: (panel, series, x, y) of everything that is drawn.
    """

    def __init__(self, name: str, title: str, note: str, shape: tuple[int, int], height: float) -> None:
        """Lay out `shape` = (rows, columns) of panels, each row `height` inches high."""
        self.name, self.title, self.note = name, title, note
        self.rows: list[tuple[str, str, Any, Any]] = []
        self._figure = Figure(figsize=(_WIDTH, height * shape[0]), layout="constrained")
        self._axes = self._figure.subplots(*shape, squeeze=False).ravel()

    def panel(self, place: int, title: str, x: str, y: str) -> Panel:
        """Return panel number `place`, with labels that name units."""
        axes: Axes = self._axes[place]
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        return Panel(axes, f"{title} [{x}; {y}]", self.rows)

    def legend_below(self) -> None:
        """Name the series of the first panel once, below all panels, in as many columns as fit."""
        handles, labels = self._axes[0].get_legend_handles_labels()
        columns = max(1, _LETTERS // (max(map(len, labels), default=0) + 7))
        self._figure.legend(handles, labels, loc="outside lower center", ncols=columns)

    def image(self, kind: str) -> bytes:
        """Return the figure as `png` (on white) or `svg` (on nothing), the same bytes for the same figure."""
        stream = io.BytesIO()
        with styled():
            if kind == "png":
                self._figure.savefig(stream, format="png", dpi=150, facecolor="white")
            else:
                self._figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
        return stream.getvalue()


class Panel:
    """One panel of a figure; every method draws, and notes what it draws."""

    def __init__(self, axes: Axes, name: str, rows: list[tuple[str, str, Any, Any]]) -> None:
        self.axes = axes
        self._name = name
        self._rows = rows

    def line(self, x: Values, y: Values, series: str, number: int = 0) -> None:
        """A line in the colour and style of series number `number`, thinned to what can be seen."""
        x, y = thinned(x), thinned(y)
        self.axes.plot(x, y, STYLES[number % 4], color=COLOURS[number % 6], label=series, linewidth=1.5)
        self._note(series, x, y)

    def distribution(self, values: Values, series: str, number: int = 0, weights: Values | None = None) -> None:
        """The share of values (weighted) up to each of them, in per cent; values that are not numbers are left out."""
        known = ~np.isnan(values)
        values, weights = values[known], None if weights is None else weights[known]
        if not len(values):
            return
        order = np.argsort(values)
        shares = np.cumsum(np.ones(len(values)) if weights is None else weights[order].astype(float))
        self.line(values[order], 100 * shares / shares[-1], series, number)
        self.axes.set_ylim(0, 101)

    def areas(self, x: Values, layers: Sequence[tuple[str, Values, str]]) -> None:
        """Layers on top of each other, each a name, heights and a colour."""
        heights = [binned(x, y)[1] for _, y, _ in layers]
        x, _ = binned(x, x)
        self.axes.stackplot(x, *heights, labels=[name for name, _, _ in layers], colors=[c for _, _, c in layers])
        for (name, _, _), y in zip(layers, heights, strict=True):
            self._note(name, x, y)
        self.axes.margins(x=0)

    def bars(self, names: Sequence[str], values: Sequence[float], series: str, number: int, of: int = 1) -> None:
        """A bar for each name, side by side with those of `of` series in all."""
        width = 0.8 / of
        places = np.arange(len(names)) + (number - (of - 1) / 2) * width
        hatch = ("", "//", "..", "xx")[number % 4]
        self.axes.bar(
            places, values, width * 0.95, color=COLOURS[number % 6], hatch=hatch, label=series, edgecolor="white"
        )
        self.axes.set_xticks(np.arange(len(names)), names)
        self.axes.grid(axis="x", visible=False)
        self._note(series, list(names), list(values))

    def marks(self, x: Values, y: Values, series: str, number: int = 0, marker: str = "o") -> None:
        """Single points."""
        size, edge = {"|": (6, 1), "X": (8, 0)}.get(marker, (4, 0))
        colour = COLOURS[number % 6]
        self.axes.plot(x, y, marker, color=colour, markersize=size, alpha=0.75, label=series, markeredgewidth=edge)
        self._note(series, x, y)

    def text(self, words: str) -> None:
        """Words where there is nothing to draw."""
        self.axes.text(0.5, 0.5, words, transform=self.axes.transAxes, ha="center", va="center")
        self.axes.set(xticks=[], yticks=[])
        self.axes.grid(visible=False)

    def tokens(self, axis: str = "y") -> None:
        """Write the numbers of an axis as 12 k, 3 M."""
        which = self.axes.yaxis if axis == "y" else self.axes.xaxis
        which.set_major_formatter(EngFormatter())

    def legend(self, below: int = 0) -> None:
        """Name the series where there is room, or, in so many columns, below the panel."""
        if below:
            self.axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=below)
        elif self.axes.get_legend_handles_labels()[0]:
            self.axes.legend()

    def _note(self, series: str, x: Sequence[Any] | Values, y: Sequence[Any] | Values) -> None:
        self._rows.extend((self._name, series, a, b) for a, b in zip(_plain(x), _plain(y), strict=True))


def thinned(values: Values) -> Values:
    """Return at most some hundreds of the values, at even steps, the first and last among them."""
    if len(values) <= _POINTS:
        return values
    return values[np.linspace(0, len(values) - 1, _POINTS).round().astype(int)]


def binned(x: Values, y: Values, bins: int = 250) -> tuple[Values, Values]:
    """Return means of x and y over even stretches of x, which ascends; float64 [at most bins] each."""
    if len(x) <= bins:
        return x, y
    place = np.minimum((x - x[0]) / max(x[-1] - x[0], 1e-12) * bins, bins - 1).astype(int)
    counts = np.bincount(place, minlength=bins)
    there = counts > 0
    mean_x, mean_y = (np.bincount(place, values, bins)[there] / counts[there] for values in (x, y))
    return mean_x, mean_y


def _plain(values: Sequence[Any] | Values) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
