"""Reading a trace: open it, recognise it, read it into columns, build the trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .build import build_trace
from .catalogue import resolve
from .columns import Columns
from .errors import InputError
from .formats import FORMATS, format_named, recognise
from .layout import Layout
from .rows import BadRowError, RowParser
from .source import Progress, Source
from .text import TextRows
from .times import TIME_UNITS
from .trace import Trace

if TYPE_CHECKING:
    from .parquet import ParquetRows


def load_trace(
    source: str | Path,
    *,
    format: str | None = None,
    time_unit: str | None = None,
    id_tokens: int | None = None,
    mapping: str | Path | dict[str, Any] | None = None,
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
    _check_options(time_unit, id_tokens, on_error, limit, both=format is not None and mapping is not None)
    path, known_id_tokens = resolve(str(source))
    with Source(path, str(source)) as opened:
        rows = _open_rows(opened)
        layout = _choose(opened.name, rows, format, mapping)
        layout = replace(
            layout,
            time_unit=time_unit or layout.time_unit,
            id_tokens=_id_tokens(layout, id_tokens, known_id_tokens),
        )
        columns = Columns()
        rows.read(RowParser(layout, columns), _bad_row_policy(opened.name, on_error, columns), progress)
        return build_trace(columns, layout, opened.name, limit)


def _check_options(time_unit: str | None, id_tokens: int | None, on_error: str, limit: int | None, both: bool) -> None:
    if both:
        raise InputError("--format and --mapping: expected one of them, not both")
    if time_unit is not None and time_unit not in TIME_UNITS:
        raise InputError(f"--time-unit {time_unit}: no such unit, known are {', '.join(TIME_UNITS)}")
    if id_tokens is not None and id_tokens < 1:
        raise InputError(f"--id-tokens {id_tokens}: expected a whole number of at least 1")
    if on_error not in ("stop", "skip"):
        raise InputError(f"--on-error {on_error}: expected stop or skip")
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit}: expected a whole number of at least 1")


def _open_rows(opened: Source) -> TextRows | ParquetRows:
    if opened.is_parquet:
        from .parquet import ParquetRows

        return ParquetRows(opened)
    return TextRows(opened)


def _choose(name: str, rows: TextRows | ParquetRows, format: str | None, mapping: Any) -> Layout:
    """The layout that was asked for, or the one that the rows' fields show."""
    if format is not None:
        return format_named(format).layout
    if mapping is not None:
        from .mapping import layout_from_mapping

        return replace(layout_from_mapping(mapping), container=rows.container)
    known = recognise(frozenset(rows.fields))
    if known is not None:
        return replace(known.layout, container=rows.container)
    if not rows.fields and not rows.first_line:
        raise InputError(f"{name}: no requests in it, the file is empty")
    seen = ", ".join(rows.fields[:12]) or rows.first_line
    names = ", ".join(f.name for f in FORMATS)
    raise InputError(
        f"{name}: format not recognised from {seen[:100]!r}; known are {names} (--format), or give --mapping"
    )


def _id_tokens(layout: Layout, asked: int | None, known: int | None) -> int:
    if asked is not None and layout.block_ids is None:
        raise InputError(f"--id-tokens {asked}: rows of format {layout.name} have no block ids")
    return asked or known or layout.id_tokens


def _bad_row_policy(name: str, on_error: str, columns: Columns) -> Callable[[int, BadRowError], None]:
    def stop(line: int, error: BadRowError) -> None:
        raise InputError(f"{name}:{line}: {error}") from None

    def skip(line: int, error: BadRowError) -> None:
        columns.skip(f"{name}:{line}: {error}")

    return skip if on_error == "skip" else stop
