"""CSV with a header line: read in blocks of rows, checked row by row only where a block is not all good."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np

from .bulk import append_block, is_plain
from .errors import InputError
from .layout import Layout
from .rows import BadRowError, RowParser
from .times import NS_PER_UNIT, number_to_ns, stamps_to_ns
from .trace import Int64

_BLOCK = 1 << 15
_Block = tuple[list[list[str]], list[int]]


def read_csv(lines: Iterable[bytes], parser: RowParser, bad_row: Callable[[int, BadRowError], None], name: str) -> None:
    """Append every row to the parser's columns; as `read_jsonl`.

    Raises:
        InputError: the header lacks a column, or the file is no CSV.
    """
    csv.field_size_limit(1 << 30)  # lists of ids are long
    reader = csv.reader(line.decode(errors="replace") for line in lines)
    try:
        header = [field.strip() for field in next((row for row in reader if row), [])]
        check_header(header, parser.layout, f"{name}:{reader.line_num}")
        for rows, line_numbers in _blocks(reader):
            if not (is_plain(parser.layout) and _append_plain(header, rows, parser)):
                _append_rows(header, rows, line_numbers, parser, bad_row)
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}: not valid CSV: {error}") from None


def check_header(header: Sequence[str], layout: Layout, place: str) -> None:
    """Raises `InputError` where a column that every row needs is missing."""
    needed = (
        layout.arrival,
        layout.prompt_tokens,
        layout.output_tokens,
        layout.block_ids,
        layout.prompt_token_ids,
    )
    for field in needed:
        optional = field == layout.output_tokens and layout.output_token_ids in header
        optional = optional or (field == layout.block_ids and layout.id_tokens_field is not None)
        if field is not None and field not in header and not optional:
            raise InputError(f"{place}: no column '{field}', expected it among {', '.join(header)}")


def _blocks(reader: Iterator[list[str]]) -> Iterator[_Block]:
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


def _append_plain(header: list[str], rows: list[list[str]], parser: RowParser) -> bool:
    """Append all rows of a plain layout at once if every one is good, else none; says which."""
    layout = parser.layout
    try:
        by_name = dict(zip(header, zip(*rows, strict=True), strict=True))
        output = np.array(list(map(int, by_name[str(layout.output_tokens)])), dtype=np.int32)
        prompt = np.array(list(map(int, by_name[str(layout.prompt_tokens)])), dtype=np.int32)
        arrival = _arrivals(by_name[layout.arrival], layout)
    except (ValueError, OverflowError, InvalidOperation):
        return False
    sessions, kinds = by_name.get(layout.session or ""), by_name.get(layout.kind or "")
    return append_block(parser, arrival, prompt, output, sessions, kinds)


def _arrivals(texts: Sequence[str], layout: Layout) -> Int64:
    if layout.time_unit == "datetime":
        return stamps_to_ns(texts)
    scale = NS_PER_UNIT[layout.time_unit]
    return np.array([number_to_ns(Decimal(text), scale) for text in texts], dtype=np.int64)


def _append_rows(
    header: list[str],
    rows: list[list[str]],
    line_numbers: list[int],
    parser: RowParser,
    bad_row: Callable[[int, BadRowError], None],
) -> None:
    layout = parser.layout
    read: dict[str | None, Callable[[str], object]] = dict.fromkeys(layout.list_fields, _ids)
    read |= dict.fromkeys(layout.name_fields, str)
    converters = [read.get(field, _number) for field in header]
    for row, line_number in zip(rows, line_numbers, strict=True):
        try:
            if len(row) != len(header):
                raise BadRowError(f"got {len(row)} fields, expected {len(header)} as in the header")
            values = zip(header, converters, row, strict=True)
            parser.add({field: convert(text) for field, convert, text in values if text})
        except BadRowError as error:
            bad_row(line_number, error)


def _ids(text: str) -> list[object]:
    """Ids between spaces or commas, with or without brackets."""
    return [_number(item) for item in text.strip("[]() ").replace(",", " ").split()]


def _number(text: str) -> object:
    """A whole or decimal number, or the text itself where it is neither."""
    for kind in (int, Decimal):
        try:
            return kind(text)
        except (ValueError, InvalidOperation):
            pass
    return text
