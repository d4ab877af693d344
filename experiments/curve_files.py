"""What `curve --out DIR` writes."""

from __future__ import annotations

import json
from typing import Any

from ..traces.output import whole_file
from .figures_files import write_csv, write_plot
from .figures_grid import hit_rate_curve
from .figures_plot import styled
from .run_folder import make_folder


def write_curve(path: str, found: dict[str, Any]) -> None:
    """Write `curve.json`, the figure, its numbers, and `capacities.csv` (a row a capacity, every rate).

    Raises:
        InputError: the folder cannot be made or written to.
    """
    folder = make_folder(path)
    stable = {key: value for key, value in found.items() if key != "cpu_s"}
    with whole_file(folder / "curve.json") as file:
        file.write((json.dumps(stable, indent=2) + "\n").encode())
    columns = {key: values for key, values in stable.items() if isinstance(values, list) and key != "check"}
    write_csv(folder / "capacities.csv", list(columns), list(zip(*columns.values(), strict=True)))
    with styled():
        write_plot(folder, hit_rate_curve(found))
