"""What `curve --out DIR` writes."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from ..traces.output import whole_file
from .run_folder import make_folder


def write_curve(path: str, found: dict[str, Any]) -> None:
    """Write `curve.json` and `curve.csv` (a row a capacity), each whole or not at all.

    Raises:
        InputError: the folder cannot be made or written to.
    """
    folder = make_folder(path)
    stable = {key: value for key, value in found.items() if key != "cpu_s"}
    with whole_file(folder / "curve.json") as file:
        file.write((json.dumps(stable, indent=2) + "\n").encode())
    columns = {key: values for key, values in stable.items() if isinstance(values, list) and key != "check"}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    with whole_file(folder / "curve.csv") as file:
        file.write(text.getvalue().encode())
