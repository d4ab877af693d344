"""Checking one row against a layout and appending it to the columns: shared by all readers."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from decimal import Decimal
from typing import NoReturn

from .columns import Columns
from .layout import Layout
from .times import NS_PER_UNIT, number_to_ns, stamp_to_ns

MISSING = object()
_MAX_TOKENS = 2**31 - 1
_WHOLE = "a whole number of at least"


class BadRowError(Exception):
    """A row that breaks its format; `str()` names the field, its value and what was expected."""


def shown(value: object) -> str:
    """A value as the file has it, cut to a readable length."""
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def refuse(field: str, value: object, expected: str) -> NoReturn:
    """Raises `BadRowError` for a field."""
    got = "missing" if value is MISSING else f"got {shown(value)}"
    raise BadRowError(f"field '{field}': {got}, expected {expected}")


def whole(row: Mapping[str, object], field: str, low: int) -> int:
    """The whole number in a field, at least `low` and within int32."""
    value = row.get(field, MISSING)
    # `type is int` and not isinstance: JSON's true and false are no numbers.
    if type(value) is int and low <= value <= _MAX_TOKENS:
        return value
    refuse(field, value, f"{_WHOLE} {low}" if type(value) is not int or value < low else "less than 2**31")


def is_no_name(value: object) -> bool:
    """Whether a field for a name (of a session, a turn, a class) says that there is none."""
    return value is None or value in ("", -1, "-1")


def id_array(row: Mapping[str, object], field: str) -> array[int]:
    """The ids in a list field as int64; ids of 64 unsigned bits wrap around, which keeps them distinct."""
    value = row.get(field, MISSING)
    if type(value) is not list:
        refuse(field, value, "a list of ids")
    try:
        ids = array("q", value)
    except (TypeError, OverflowError):
        ids = None
    # array() takes booleans for numbers, and `in` finds 1 for true: look closer only where it can matter.
    if ids is None or (ids and min(ids) < 2 and not all(type(v) is int and v >= 0 for v in value)):
        return _odd_ids(field, value)
    return ids


def _odd_ids(field: str, value: list[object]) -> array[int]:
    ids: array[int] = array("q")
    for item in value:
        if type(item) is not int or not 0 <= item < 2**64:
            refuse(field, item, "ids that are whole numbers from 0 to 2**64 - 1")
        ids.append(item - 2**64 if item >= 2**63 else item)
    return ids


class RowParser:
    """Appends rows of one layout to columns; a bad row raises `BadRowError` and changes nothing."""

    def __init__(self, layout: Layout, columns: Columns):
        self.layout = layout
        self.columns = columns
        self._ns_per_unit = NS_PER_UNIT.get(layout.time_unit, 10**6)
        self._last_arrival: dict[int, int] = {}
        self._id_tokens = layout.id_tokens

    def add(self, row: Mapping[str, object]) -> None:
        """Check a row (field name to value: int, Decimal, str, list or None) and append it."""
        layout, columns = self.layout, self.columns
        if layout.zero_output_failed and layout.output_tokens and row.get(layout.output_tokens) == 0:
            columns.failed += 1
            return
        session = self._number(row, layout.session, columns.session_names)
        think = self._think(row)
        arrival = self._arrival(row, session, think)
        prompt, output, covered, ids = self._sizes(row)
        own = self._number(row, layout.row_id, columns.row_names)
        parent = self._number(row, layout.parent, columns.row_names)
        kind = self._number(row, layout.kind, columns.kind_names)
        priority = self._priority(row)
        if layout.think is not None and session >= 0:
            self._last_arrival[session] = arrival
        columns.append(arrival, prompt, output)
        if ids is not None:
            columns.append_ids(ids, covered)
        if layout.session is not None:
            columns.session.append(session)
        if layout.parent is not None:
            columns.own.append(own)
            columns.parent.append(parent)
        if layout.think is not None:
            columns.think.append(think)
        if layout.kind is not None:
            columns.kind.append(kind)
        if layout.priority is not None:
            columns.priority.append(priority)

    def _sizes(self, row: Mapping[str, object]) -> tuple[int, int, int, array[int] | None]:
        """Prompt, output and covered tokens, and the ids that cover them."""
        layout = self.layout
        if layout.prompt_token_ids is not None:
            return self._token_sizes(row, layout.prompt_token_ids)
        assert layout.prompt_tokens is not None
        assert layout.output_tokens is not None
        prompt = whole(row, layout.prompt_tokens, 1)
        output = whole(row, layout.output_tokens, 1)
        if layout.block_ids is None:
            return prompt, output, prompt, None
        if layout.id_tokens_field is not None:
            self._check_id_tokens(row, layout.id_tokens_field)
        if layout.block_ids not in row and self._id_tokens == 0:
            return prompt, output, prompt, None
        covered = prompt
        if layout.covered_tokens is not None and row.get(layout.covered_tokens) is not None:
            covered = whole(row, layout.covered_tokens, prompt)
        ids = id_array(row, layout.block_ids)
        size = self._id_tokens
        if len(ids) != -(-covered // size):
            need = f"{-(-covered // size)} of {size} tokens each for {covered} tokens (see --id-tokens)"
            raise BadRowError(f"field '{layout.block_ids}': got {len(ids)} ids, expected {need}")
        return prompt, output, covered, ids

    def _token_sizes(self, row: Mapping[str, object], field: str) -> tuple[int, int, int, array[int]]:
        layout = self.layout
        ids = id_array(row, field)
        prompt = len(ids)
        if prompt == 0:
            refuse(field, [], "at least one token id")
        if layout.output_token_ids is not None and row.get(layout.output_token_ids) is not None:
            answer = id_array(row, layout.output_token_ids)
            if len(answer) == 0:
                refuse(layout.output_token_ids, [], "at least one token id")
            return prompt, len(answer), prompt + len(answer), ids + answer
        return prompt, whole(row, layout.output_tokens or "output_tokens", 1), prompt, ids

    def _check_id_tokens(self, row: Mapping[str, object], field: str) -> None:
        stated = row.get(field)
        if stated is None:
            return
        if len(self.columns.arrival) == 0 and self._id_tokens == 0:
            self._id_tokens = self.columns.id_tokens = whole(row, field, 0)
        elif stated != self._id_tokens:
            refuse(field, stated, f"{self._id_tokens} as in the first row")

    def _arrival(self, row: Mapping[str, object], session: int, think: int) -> int:
        field = self.layout.arrival
        value = row.get(field, MISSING)
        if (value is MISSING or value is None) and think >= 0 and session in self._last_arrival:
            self.columns.assumed_arrivals += 1
            return self._last_arrival[session] + think
        try:
            return stamp_to_ns(value) if self.layout.time_unit == "datetime" else number_to_ns(value, self._ns_per_unit)
        except ValueError:
            unit = self.layout.time_unit
            form = "a date and time (ISO 8601)" if unit == "datetime" else f"a number of at least 0, in {unit}"
            refuse(field, value, form + " (see --time-unit)")

    def _think(self, row: Mapping[str, object]) -> int:
        field = self.layout.think
        value = row.get(field) if field is not None else None
        if field is None or value is None or value == -1:
            return -1
        try:
            return number_to_ns(value, self._ns_per_unit)
        except ValueError:
            refuse(field, value, "a number of at least 0")

    def _priority(self, row: Mapping[str, object]) -> int:
        field = self.layout.priority
        if field is None or row.get(field) is None:
            return 0
        value = row[field]
        if type(value) is not int or abs(value) > _MAX_TOKENS:
            refuse(field, value, "a whole number of 32 bits")
        return value

    def _number(self, row: Mapping[str, object], field: str | None, names: dict[object, int]) -> int:
        """A dense number for the name in a field, -1 where there is none."""
        value = row.get(field) if field is not None else None
        if field is None or is_no_name(value):
            return -1
        if type(value) not in (int, str):
            refuse(field, value, "a whole number or a name")
        return names.setdefault(value, len(names))
