"""CSV with a header line: read in blocks of rows, checked row by row only where a block is not all good."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np

from .columns import numbers
from .errors import InputError
from .layout import Layout
from .rows import BadRowError, RowParser
from .times import NS_PER_UNIT, number_to_ns, stamps_to_ns

_BLOCK = 1 << 15
Block = tuple[list[list[str]], list[int]]


def read_csv(
    lines: Iterable[bytes], parser: RowParser, bad_row: Callable[[int, BadRowError], None], name: str
) -> None:
    """Append every row to the parser's columns; as `read_jsonl`.

    Raises:
        InputError: the header lacks a column, or the file is no CSV.
    """
    reader = csv.reader(line.decode(errors="replace") for line in lines)
    try:
        header = [field.strip() for field in next((row for row in reader if row), [])]
        _check_header(header, parser.layout, name)
        for rows, line_numbers in _blocks(reader):
            if not _append_block(header, rows, parser):
                _append_rows(header, rows, line_numbers, parser, bad_row)
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}: not valid CSV: {error}") from None


def _check_header(header: Sequence[str], layout: Layout, name: str) -> None:
    for field in (layout.arrival, layout.prompt_tokens, layout.output_tokens, layout.block_ids):
        if field is not None and field not in header:
            raise InputError(f"{name}:1: no column '{field}' in the header, which has {', '.join(header)}")


def _blocks(reader: Iterator[list[str]]) -> Iterator[Block]:
    """Blocks of rows and the line numbers at which they end; blank lines are passed over."""
    rows: list[list[str]] = []
    line_numbers: list[int] = []
    for row in reader:
        if row:
            rows.append(row)
            line_numbers.append(reader.line_num)  # pyright: ignore[reportAttributeAccessIssue]
            if len(rows) == _BLOCK:
                yield rows, line_numbers
                rows, line_numbers = [], []
    if rows:
        yield rows, line_numbers


def _append_block(header: list[str], rows: list[list[str]], parser: RowParser) -> bool:
    """Append all rows at once where the layout is a plain one and every row is good; else append none."""
    layout, columns = parser.layout, parser.columns
    special = (layout.block_ids, layout.parent, layout.think, layout.priority, layout.prompt_token_ids)
    if any(field is not None for field in special):
        return False
    try:
        by_name = dict(zip(header, zip(*rows, strict=True), strict=True))
        output = np.array(list(map(int, by_name[str(layout.output_tokens)])), dtype=np.int32)
        prompt = np.array(list(map(int, by_name[str(layout.prompt_tokens)])), dtype=np.int32)
        arrival = _arrivals(by_name[layout.arrival], layout)
    except (ValueError, OverflowError, InvalidOperation):
        return False
    keep = output != 0 if layout.zero_output_failed else np.ones(len(rows), dtype=bool)
    if (prompt[keep] < 1).any() or (output[keep] < 1).any():
        return False
    columns.failed += len(rows) - int(keep.sum())
    columns.arrival.frombytes(arrival[keep].tobytes())
    columns.prompt.frombytes(prompt[keep].tobytes())
    columns.output.frombytes(output[keep].tobytes())
    for field, names, target in (
        (layout.session, columns.session_names, columns.session),
        (layout.kind, columns.kind_names, columns.kind),
    ):
        if field is not None:
            _append_names(by_name.get(field), names, target, keep)
    return True


def _arrivals(texts: Sequence[str], layout: Layout) -> np.ndarray:
    if layout.time_unit == "datetime":
        return stamps_to_ns(texts)
    scale = NS_PER_UNIT[layout.time_unit]
    return np.array([number_to_ns(Decimal(text), scale) for text in texts], dtype=np.int64)


def _append_names(
    texts: Sequence[str] | None, names: dict[object, int], target: array[int], keep: np.ndarray
) -> None:
    if texts is None:
        target.frombytes(np.full(int(keep.sum()), -1, dtype=np.int32).tobytes())
    else:
        target.extend(numbers(names, np.array(texts, dtype=object)[keep]))


def _append_rows(
    header: list[str],
    rows: list[list[str]],
    line_numbers: list[int],
    parser: RowParser,
    bad_row: Callable[[int, BadRowError], None],
) -> None:
    lists = {parser.layout.block_ids, parser.layout.prompt_token_ids, parser.layout.output_token_ids}
    for row, line_number in zip(rows, line_numbers, strict=True):
        try:
            if len(row) != len(header):
                raise BadRowError(f"got {len(row)} fields, expected {len(header)} as in the header")
            parser.add(
                {field: _value(text, field in lists) for field, text in zip(header, row, strict=True) if text}
            )
        except BadRowError as error:
            bad_row(line_number, error)


def _value(text: str, is_list: bool) -> object:
    """What a field says: a list of ids, a whole or decimal number, or else the text itself."""
    if is_list:
        return [_value(item, False) for item in text.strip("[]() ").replace(",", " ").split()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return Decimal(text)
    except InvalidOperation:
        return text
