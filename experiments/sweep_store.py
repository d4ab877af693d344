"""The folder of a sweep: what was asked for, a file for each finished cell, and the table of all.

A cell's file appears whole or not at all, as soon as the cell is done: whenever the sweep is killed, only cells that
were running are lost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..traces.errors import InputError
from ..traces.output import whole_file
from .run_folder import make_folder
from .sweep_cells import Record
from .sweep_spec import Specification

_SPECIFICATION = "sweep.json"


class SweepFolder:
    """Results of one sweep, on disk."""

    def __init__(self, path: str, specification: Specification, *, resume: bool = True) -> None:
        """Make the folder, or take it up if it is of the same sweep.

        Raises:
            InputError: it is of another sweep, or of this one and `resume` is off, or cannot be made.
        """
        self.path = make_folder(path)
        self._specification = specification
        known = self.path / _SPECIFICATION
        if known.exists():
            if not resume:
                raise InputError(f"{path}: holds a sweep already; expected a new folder, or no --no-resume")
            _same(path, _read(known), specification.tree)
        with whole_file(known) as file:
            file.write(_json(specification.tree))
        make_folder(str(self.path / "cells"))

    def finished(self) -> dict[int, Record]:
        """Return what is there, by the number of the cell."""
        found: dict[int, Record] = {}
        for cell in self._specification.cells:
            file = self._file(cell.number)
            if file.exists():
                found[cell.number] = _read(file)
        return found

    def add(self, number: int, record: Record) -> None:
        """Keep what a cell came to."""
        with whole_file(self._file(number)) as file:
            file.write(_json(record))

    def run_folder(self, number: int) -> str:
        """Return the path of a cell's run folder."""
        return str(self.path / "runs" / f"{number:05}")

    def _file(self, number: int) -> Path:
        return self.path / "cells" / f"{number:05}.json"

    def write_results(self, rows: list[dict[str, Any]]) -> None:
        """Write `results.parquet`, a row a cell."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: _column([row.get(name) for row in rows]) for name in names}
        with whole_file(self.path / "results.parquet") as file:
            pq.write_table(pa.table(columns), file)


def result_rows(specification: Specification, records: dict[int, Record]) -> list[dict[str, Any]]:
    """Return a row for each cell with a record: what was varied, then every figure under its dotted name."""
    rows: list[dict[str, Any]] = []
    for cell in specification.cells:
        record = records.get(cell.number)
        if record is None:
            continue
        figures = dict(record.get("summary", {}))
        for key in ("trace", "config", "rejected_requests"):
            figures.pop(key, None)
        head = {"cell": cell.number, "trace": cell.trace, "error": record.get("error")}
        allocator = record.get("summary", {}).get("config", {}).get("allocator", {})
        sizes = {"capacity_tokens": _capacity_tokens(allocator)} if allocator else {}
        rows.append(head | cell.values | sizes | _flat(figures))
    return rows


def _capacity_tokens(allocator: dict[str, Any]) -> int:
    if "num_blocks" in allocator:
        return (allocator["num_blocks"] - 1) * allocator["block_size"]
    return allocator["num_slots"]


def _flat(tree: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
    return flat


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: text where they are of several, so that a column can hold them."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    if kinds == {int, float}:
        return [value if value is None else float(value) for value in values]
    return [value if value is None else str(value) for value in values]


def _same(path: str, there: Any, asked: dict[str, Any]) -> None:
    asked = json.loads(json.dumps(asked))
    if there == asked:
        return
    different = [key for key in asked if not isinstance(there, dict) or there.get(key) != asked[key]]
    key = different[0] if different else "keys"
    old, new = (json.dumps(tree.get(key)) if isinstance(tree, dict) else "?" for tree in (there, asked))
    raise InputError(
        f"{path}: holds another sweep, whose {key} is {_short(old)} where now it is {_short(new)}; "
        "expected the same sweep, or another --out"
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        raise InputError(f"{path}: cannot be read; remove it to have it computed again") from None


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()
