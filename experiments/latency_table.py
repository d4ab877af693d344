"""Tables of measured times: reading, checking and writing them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..sim.profile import Grid, Table, curve
from ..traces.errors import InputError

COLUMNS = ("part", "tokens", "context", "time_us")
PARTS = ("dense", "prefill", "decode")

Row = tuple[str, float, float, float]
"""part, tokens, context, time in microseconds"""


def read_table(path: str) -> Table:
    """Read a table of measured times, CSV or (by its suffix .parquet) Parquet.

    Columns `part`, `tokens`, `context`, `time_us`. `dense`: all that is not attention, of a step with so many tokens
    (context is ignored). `prefill`: attention of one chunk of `tokens` new tokens behind `context` others. `decode`:
    attention of `tokens` requests that decode with a mean context of `context`. Lines that begin with # are passed
    over. `prefill` and `decode` may be absent, else each of their `tokens` comes with the same contexts.

    Raises:
        InputError: the file is none of this.
    """
    try:
        rows = _parquet(path) if path.endswith(".parquet") else _csv(path)
    except OSError as error:
        raise InputError(f"latency.profile: {path}: cannot be read: {error.strerror or error}") from None
    return table_from_rows(rows, path)


def table_from_rows(rows: Iterable[Row], place: str) -> Table:
    """Return the table of `rows`, checked."""
    parts: dict[str, dict[float, dict[float, float]]] = {part: {} for part in PARTS}
    for part, tokens, context, time_us in rows:
        parts[part].setdefault(tokens, {})[0.0 if part == "dense" else context] = 1000.0 * time_us
    dense = parts["dense"]
    if not dense:
        raise InputError(f"{place}: no rows of part dense in it; expected the time of a step by its tokens")
    places = sorted(dense)
    times = [dense[tokens][0.0] for tokens in places]
    return Table(
        curve(places, times), _grid(parts["prefill"], "prefill", place), _grid(parts["decode"], "decode", place)
    )


def csv_text(rows: Iterable[Row], comments: Iterable[str] = ()) -> str:
    """Return rows as the text of a CSV file, with comments in front."""
    lines = [f"# {comment}" for comment in comments]
    lines.append(",".join(COLUMNS))
    lines += [f"{part},{tokens:g},{context:g},{time_us:.6g}" for part, tokens, context, time_us in rows]
    return "\n".join(lines) + "\n"


def _grid(rows: dict[float, dict[float, float]], part: str, place: str) -> Grid | None:
    if not rows:
        return None
    contexts = sorted(next(iter(rows.values())))
    for tokens, times in rows.items():
        if sorted(times) != contexts:
            raise InputError(
                f"{place}: part {part}: {tokens:g} tokens have not the contexts that others have; "
                "expected every combination"
            )
    places = sorted(rows)
    return Grid(places, [curve(contexts, [rows[tokens][context] for context in contexts]) for tokens in places])


def _csv(path: str) -> list[Row]:
    text = Path(path).read_text(encoding="utf-8")
    kept = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    reader = csv.DictReader(io.StringIO("\n".join(line for _, line in kept)))
    _check_columns(reader.fieldnames or (), path)
    return [_row(row, f"{path}:{number}") for row, (number, _) in zip(reader, kept[1:], strict=True)]


def _parquet(path: str) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"latency.profile: {path}: not Parquet: {str(error).splitlines()[0]}") from None
    _check_columns(table.column_names, path)
    return [_row(row, f"{path}: row {number}") for number, row in enumerate(table.to_pylist(), 1)]


def _check_columns(names: Iterable[str], path: str) -> None:
    missing = [name for name in COLUMNS if name not in set(names)]
    if missing:
        raise InputError(f"{path}: no column {', '.join(missing)}; expected {', '.join(COLUMNS)}")


def _row(row: dict[str, Any], place: str) -> Row:
    if row["part"] not in PARTS:
        raise InputError(f"{place}: part: expected {', '.join(PARTS)}, got {row['part']!r}")
    values: list[float] = []
    for name in COLUMNS[1:]:
        try:
            # The context of dense rows may be left out.
            value = float(row[name] or 0.0) if name == "context" else float(row[name])
        except (TypeError, ValueError):
            value = -1.0
        if not 0 <= value < float("inf"):
            raise InputError(f"{place}: {name}: expected a number of at least 0, got {row[name]!r}")
        values.append(value)
    return row["part"], values[0], values[1], values[2]
