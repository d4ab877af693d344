"""Figures and tables as files; each appears whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..traces.output import whole_file
from .figures_plot import Plot


def write_plot(folder: Path, plot: Plot) -> None:
    """Write a figure as PNG and SVG, and its numbers as CSV beside them."""
    for kind in ("png", "svg"):
        with whole_file(folder / f"{plot.name}.{kind}") as file:
            file.write(plot.image(kind))
    write_csv(folder / f"{plot.name}.csv", ["panel", "series", "x", "y"], plot.rows)


def write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write a table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    with whole_file(path) as file:
        file.write(text.getvalue().encode())
