"""Reading a trace: open it, recognise it, read it into columns, build the trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from .build import build_trace
from .columns import Columns
from .errors import InputError
from .formats import FORMATS, format_named, recognise
from .layout import Layout
from .read_csv import read_csv
from .read_jsonl import read_jsonl
from .rows import BadRowError, RowParser
from .source import Source
from .times import TIME_UNITS
from .trace import Trace

Progress = Callable[[int, int | None], None]
_LINES_A_REPORT = 1 << 13
_SNIFFED_LINES = 5


def load_trace(
    source: str | Path,
    *,
    format: str | None = None,
    time_unit: str | None = None,
    id_tokens: int | None = None,
    mapping: str | Path | dict[str, object] | None = None,
    on_error: str = "stop",
    limit: int | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read a trace into its one in-memory form.

    Args:
        source: a path (plain, gzip or zstandard), '-' for stdin, or the name of a built-in or fetched trace.
        format: a format's name; recognised from the content where None.
        time_unit: s, ms, us, ns or datetime, instead of the format's own.
        id_tokens: tokens a block id stands for, instead of the format's own.
        mapping: a column mapping (a YAML file, or its content) for files of any other form.
        on_error: `stop` at the first bad row, or `skip` and count them.
        limit: only the first so many requests in arrival order.
        progress: called now and then with the bytes read and the bytes in all (None where unknown).

    Raises:
        InputError: the input is wrong; the message names the place.
    """
    _check_options(time_unit, id_tokens, on_error, limit)
    with Source(str(source)) as opened:
        lines, head = _peek(opened)
        layout = _choose(opened.name, head, format, mapping)
        layout = replace(
            layout, time_unit=time_unit or layout.time_unit, id_tokens=_id_tokens(layout, id_tokens)
        )
        columns = Columns()
        parser = RowParser(layout, columns)
        bad_row = _bad_row_policy(opened.name, on_error, columns)
        reported = _reporting(lines, opened, progress)
        if layout.container == "csv":
            read_csv(reported, parser, bad_row, opened.name)
        else:
            read_jsonl(reported, parser, bad_row)
        return build_trace(columns, layout, opened.name, limit)


def _check_options(time_unit: str | None, id_tokens: int | None, on_error: str, limit: int | None) -> None:
    if time_unit is not None and time_unit not in TIME_UNITS:
        raise InputError(f"--time-unit {time_unit}: no such unit, known are {', '.join(TIME_UNITS)}")
    if id_tokens is not None and id_tokens < 1:
        raise InputError(f"--id-tokens {id_tokens}: expected a whole number of at least 1")
    if on_error not in ("stop", "skip"):
        raise InputError(f"--on-error {on_error}: expected stop or skip")
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit}: expected a whole number of at least 1")


def _id_tokens(layout: Layout, id_tokens: int | None) -> int:
    if id_tokens is None:
        return layout.id_tokens
    if layout.block_ids is None:
        raise InputError(f"--id-tokens {id_tokens}: rows of format {layout.name} have no block ids")
    return id_tokens


def _peek(opened: Source) -> tuple[Iterator[bytes], list[bytes]]:
    """All lines, and the first few that are not blank."""
    lines = opened.lines()
    taken: list[bytes] = []
    head: list[bytes] = []
    for line in lines:
        taken.append(line)
        if line.strip():
            head.append(line)
        if len(head) == _SNIFFED_LINES:
            break
    return chain(taken, lines), head


def _choose(name: str, head: list[bytes], format: str | None, mapping: object) -> Layout:
    if format is not None:
        return format_named(format).layout
    container, fields = _fields_in(head)
    known = recognise(fields)
    if known is not None:
        return replace(known.layout, container=container)
    if not head:
        raise InputError(f"{name}: no requests in it, the file is empty")
    seen = ", ".join(sorted(fields)[:12]) or head[0][:60].decode(errors="replace").strip()
    names = ", ".join(f.name for f in FORMATS)
    raise InputError(
        f"{name}: format not recognised from {seen!r}; known are {names} (--format), or give --mapping"
    )


def _fields_in(head: list[bytes]) -> tuple[str, set[str]]:
    """The container and the field names that the first lines show; broken JSON lines show theirs too."""
    if any(line.lstrip().startswith(b"{") for line in head):
        keys = {
            key.decode(errors="replace") for line in head for key in re.findall(rb'"([^"]{1,80})"\s*:', line)
        }
        return "jsonl", keys
    columns = head[0].decode(errors="replace").split(",") if head else []
    return "csv", {column.strip().strip('"') for column in columns} - {""}


def _bad_row_policy(name: str, on_error: str, columns: Columns) -> Callable[[int, BadRowError], None]:
    def stop(line: int, error: BadRowError) -> None:
        raise InputError(f"{name}:{line}: {error}") from None

    def skip(line: int, error: BadRowError) -> None:
        columns.skip(f"{name}:{line}: {error}")

    return skip if on_error == "skip" else stop


def _reporting(lines: Iterable[bytes], opened: Source, progress: Progress | None) -> Iterable[bytes]:
    if progress is None:
        return lines
    return _report(lines, opened, progress)


def _report(lines: Iterable[bytes], opened: Source, progress: Progress) -> Iterator[bytes]:
    for number, line in enumerate(lines):
        if number % _LINES_A_REPORT == 0:
            progress(opened.position, opened.total)
        yield line
    progress(opened.position, opened.total)
