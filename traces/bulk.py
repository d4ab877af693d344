"""Appending a whole block of rows at once, for layouts of plain columns: no ids, no links."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .layout import Layout
from .rows import RowParser, is_no_name
from .trace import Int32, Int64


def is_plain(layout: Layout) -> bool:
    """Whether rows have nothing but a time, two lengths and, perhaps, a session and a class."""
    special = (
        layout.block_ids,
        layout.prompt_token_ids,
        layout.row_id,
        layout.parent,
        layout.think,
        layout.priority,
    )
    return all(field is None for field in special)


def append_block(
    parser: RowParser,
    arrival: Int64,
    prompt: Int32,
    output: Int32,
    sessions: Sequence[object] | None,
    kinds: Sequence[object] | None,
) -> bool:
    """Append rows given as columns if all of them are good, else none; says which.

    Args:
        parser: of a plain layout; its columns grow.
        arrival: int64 [n], nanoseconds.
        prompt, output: int32 [n], as the rows have them.
        sessions, kinds: names [n], or None where the file has no such column.
    """
    layout, columns = parser.layout, parser.columns
    keep = output != 0 if layout.zero_output_failed else np.ones(len(output), dtype=bool)
    arrival, prompt, output = arrival[keep], prompt[keep], output[keep]
    if (prompt < 1).any() or (output < 1).any() or (arrival < 0).any():
        return False
    columns.failed += len(keep) - len(arrival)
    columns.arrival.frombytes(arrival.tobytes())
    columns.prompt.frombytes(prompt.tobytes())
    columns.output.frombytes(output.tobytes())
    if layout.session is not None:
        _append_names(sessions, columns.session_names, columns.session, keep)
    if layout.kind is not None:
        _append_names(kinds, columns.kind_names, columns.kind, keep)
    return True


def _append_names(
    values: Sequence[object] | None, names: dict[object, int], target: array[int], keep: npt.NDArray[np.bool_]
) -> None:
    if values is None:
        target.extend([-1] * int(keep.sum()))
        return
    kept = values if keep.all() else [value for value, good in zip(values, keep.tolist(), strict=True) if good]
    target.extend([-1 if is_no_name(value) else names.setdefault(value, len(names)) for value in kept])
