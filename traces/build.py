"""From columns in file order to a `Trace`: sorted, shifted, cut, interned and linked."""

from __future__ import annotations

from array import array
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .columns import Columns
from .errors import InputError
from .layout import Layout
from .prefix import intern_blocks, intern_sequences, number_by_first_appearance
from .ragged import flat_indices, pointers
from .times import TEN_YEARS_NS
from .trace import Int32, Int64, Trace
from .turns import cover_answers, parents_by_name, parents_in_sessions, sessions_of

_Int = TypeVar("_Int", np.int32, np.int64)


def build_trace(columns: Columns, layout: Layout, name: str, limit: int | None = None) -> Trace:
    """The trace of `columns`: its first `limit` requests in arrival order.

    Raises:
        InputError: there is no request at all.
    """
    if len(columns.arrival) == 0:
        raise InputError(f"{name}: no requests in it{_left_out(columns)}")
    arrival = _int64(columns.arrival)
    order, unsorted = _arrival_order(arrival)
    notes = _notes(columns, layout, unsorted)
    order = order[:limit]
    arrival = arrival[order]
    is_epoch = layout.time_unit != "datetime" and arrival[0] > TEN_YEARS_NS
    if is_epoch:
        notes.append("arrivals are epoch times; they now count from the first")
    if is_epoch or layout.time_unit == "datetime":
        arrival = arrival - arrival[0]
    prompt, output = _int32(columns.prompt)[order], _int32(columns.output)[order]
    session, parent = _links(columns, order)
    granularity = columns.id_tokens or layout.id_tokens
    nodes, ptr, covered = _prefixes(columns, layout, order)
    if nodes is not None and ptr is not None and covered is not None and parent is not None:
        nodes, ptr, covered = cover_answers(nodes, ptr, covered, parent, prompt, output, granularity)
    kind, kind_names = _kinds(columns, order)
    return Trace(
        name=name,
        arrival_ns=arrival,
        prompt_tokens=prompt,
        output_tokens=output,
        granularity=granularity if nodes is not None else 0,
        node_ptr=ptr,
        nodes=nodes,
        num_nodes=int(nodes.max()) + 1 if nodes is not None else 0,
        covered_tokens=covered,
        session=session,
        parent=parent,
        think_ns=_optional(_int64(columns.think), order, -1),
        priority=_optional(_int32(columns.priority), order, 0),
        kind=kind,
        kind_names=kind_names,
        notes=tuple(notes),
    )


def _int64(values: array[int]) -> Int64:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


def _int32(values: array[int]) -> Int32:
    return np.frombuffer(values, dtype=np.int32) if values else np.zeros(0, dtype=np.int32)


def _arrival_order(arrival: Int64) -> tuple[npt.NDArray[np.intp], int]:
    """What sorts the rows stably, and how many of them arrive before a row above them."""
    late = np.count_nonzero(arrival[1:] < np.maximum.accumulate(arrival)[:-1])
    return (np.argsort(arrival, kind="stable"), int(late)) if late else (np.arange(len(arrival)), 0)


def _optional(values: npt.NDArray[_Int], order: npt.NDArray[np.intp], none: int) -> npt.NDArray[_Int] | None:
    """A column in arrival order, or None where it is absent or says nothing."""
    return values[order] if len(values) and (values != none).any() else None


def _links(columns: Columns, order: npt.NDArray[np.intp]) -> tuple[Int32 | None, Int32 | None]:
    """Dense session numbers and parent rows, from whichever of the two the format states."""
    session = _optional(_int32(columns.session), order, -1)
    named = _optional(_int32(columns.parent), order, -1)
    parent = None if named is None else parents_by_name(_int32(columns.own)[order], named)
    if session is None:
        return (None if parent is None else sessions_of(parent)), parent
    parent = parents_in_sessions(session) if parent is None else parent
    has = session >= 0
    dense = np.full(len(session), -1, dtype=np.int32)
    dense[has] = number_by_first_appearance(session[has])[0]
    return dense, parent


def _prefixes(
    columns: Columns, layout: Layout, order: npt.NDArray[np.intp]
) -> tuple[Int32 | None, Int64 | None, Int32 | None]:
    """Nodes, their row pointers and the tokens they cover; None where the format has no identity."""
    counts = _int32(columns.id_count)
    if len(counts) == 0:
        return None, None, None
    ids, starts = _int64(columns.ids), pointers(counts)[:-1]
    ptr = pointers(counts[order])
    if ptr[-1] != len(ids) or (np.diff(order) < 0).any():
        ids = ids[flat_indices(starts[order], counts[order].astype(np.int64))]
    nodes = intern_blocks(ids, ptr) if layout.prompt_token_ids is None else intern_sequences(ids, ptr)
    return nodes, ptr, _int32(columns.covered)[order]


def _kinds(columns: Columns, order: npt.NDArray[np.intp]) -> tuple[Int32 | None, tuple[str, ...]]:
    kind = _optional(_int32(columns.kind), order, -1)
    return kind, () if kind is None else tuple(str(name) for name in columns.kind_names)


def _left_out(columns: Columns) -> str:
    if columns.skipped:
        return f" ({_rows(columns.skipped, 'bad row')} skipped, the first: {columns.first_skipped})"
    return f" ({_rows(columns.failed, 'failed request')} left out)" if columns.failed else ""


def _notes(columns: Columns, layout: Layout, unsorted: int) -> list[str]:
    notes: list[str] = []
    if columns.skipped:
        verb = "was" if columns.skipped == 1 else "were"
        notes.append(f"{_rows(columns.skipped, 'bad row')} {verb} skipped, the first: {columns.first_skipped}")
    if columns.failed:
        notes.append(f"{_rows(columns.failed)} with 0 {layout.output_tokens} counted as failed and left out")
    if columns.assumed_arrivals:
        notes.append(
            f"arrivals of {_rows(columns.assumed_arrivals, 'turn')} that state only a delay: "
            "that long after the turn before"
        )
    if unsorted:
        verbs = "was out of order and has" if unsorted == 1 else "were out of order and have"
        notes.append(f"{_rows(unsorted)} {verbs} been sorted by arrival")
    return notes


def _rows(number: int, what: str = "row") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
