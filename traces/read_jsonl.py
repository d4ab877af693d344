"""JSON lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from decimal import Decimal

from .rows import BadRowError, RowParser, shown

# Decimal keeps the fraction of a time stamp as it is written.
_decode = json.JSONDecoder(parse_float=Decimal).decode


def read_jsonl(lines: Iterable[bytes], parser: RowParser, bad_row: Callable[[int, BadRowError], None]) -> None:
    """Append every line to the parser's columns; blank lines are passed over.

    Args:
        lines: with or without their ends.
        parser: checks and appends one row.
        bad_row: called with the line number, from 1, and what is wrong there.
    """
    add = parser.add
    for number, line in enumerate(lines, 1):
        try:
            add(_object(line))
        except BadRowError as error:
            if line.strip():
                bad_row(number, error)


def _object(line: bytes) -> dict[str, object]:
    try:
        row = _decode(line.decode())
    except (ValueError, RecursionError) as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        text = line.decode(errors="replace").strip()
        raise BadRowError(f"got {shown(text)} ({what}), expected one whole JSON object") from None
    if type(row) is not dict:
        raise BadRowError(f"got {shown(row)}, expected one JSON object")
    return row
