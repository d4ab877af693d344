"""Parquet: rows of any layout, and format kvreplay column by column. Imports pyarrow, so only on demand."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingImports]
import pyarrow.compute as pc  # pyright: ignore[reportMissingImports]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

from .bulk import append_block, is_plain
from .errors import InputError
from .layout import Layout
from .output import whole_file
from .read_csv import check_header
from .rows import BadRowError, RowParser
from .source import Progress, Source
from .times import NS_PER_UNIT
from .trace import Int64, Trace

_BATCH = 1 << 16


class ParquetRows:
    """An open Parquet file; rows are numbered from 1 where a text file has line numbers."""

    def __init__(self, opened: Source):
        self.name = opened.name
        self.container = "parquet"
        self.first_line = ""
        self._opened = opened
        try:
            # Seekable files are read in place; a pipe or compressed file has to be held.
            self._file = pq.ParquetFile(opened.seekable or io.BytesIO(opened.content()))
        except pa.ArrowException as error:
            raise InputError(f"{self.name}: not a readable Parquet file ({_first_line(error)})") from None

    @property
    def fields(self) -> list[str]:
        """Names of the columns."""
        return self._file.schema_arrow.names

    def read(self, parser: RowParser, bad_row: Callable[[int, BadRowError], None], progress: Progress | None) -> None:
        """Append every row to the parser's columns; as `read_jsonl`."""
        check_header(self.fields, parser.layout, self.name)
        used = [field for field in self.fields if field in parser.layout.fields]
        done, total = 0, self._file.metadata.num_rows
        try:
            for batch in self._file.iter_batches(_BATCH, columns=used):
                if not (is_plain(parser.layout) and _append_plain(batch, parser)):
                    _append_rows(batch, done, parser, bad_row)
                done += batch.num_rows
                if progress is not None:
                    progress(done, total)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.name}: not a readable Parquet file ({_first_line(error)})") from None


def _append_plain(batch: Any, parser: RowParser) -> bool:
    """Append a batch of a plain layout at once if every row is good, else none; says which."""
    layout = parser.layout
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    try:
        prompt = _whole_numbers(columns[str(layout.prompt_tokens)], np.int32)
        output = _whole_numbers(columns[str(layout.output_tokens)], np.int32)
        arrival = _arrivals(columns[layout.arrival], layout)
    except (ValueError, OverflowError):
        return False
    names = [columns[f].to_pylist() if f in columns else None for f in (layout.session, layout.kind)]
    return append_block(parser, arrival, prompt, output, names[0], names[1])


def _whole_numbers(column: Any, dtype: type[np.signedinteger[Any]]) -> np.ndarray:
    if column.null_count or not pa.types.is_integer(column.type):
        raise ValueError(column.type)
    values = column.to_numpy(zero_copy_only=False)
    if len(values) and not np.iinfo(dtype).min <= values.min() <= values.max() <= np.iinfo(dtype).max:
        raise OverflowError
    return values.astype(dtype)


def _arrivals(column: Any, layout: Layout) -> Int64:
    if pa.types.is_timestamp(column.type) and layout.time_unit == "datetime" and not column.null_count:
        return column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64()).to_numpy(zero_copy_only=False)
    scale = NS_PER_UNIT.get(layout.time_unit)
    if scale is None:
        raise ValueError(column.type)
    values = _whole_numbers(column, np.int64)
    if len(values) and values.max() > 2**62 // scale:
        raise OverflowError
    return values * scale


def _append_rows(batch: Any, before: int, parser: RowParser, bad_row: Callable[[int, BadRowError], None]) -> None:
    columns = [_as_json(column) for column in batch.columns]
    for number, values in enumerate(zip(*columns, strict=True), before + 1):
        try:
            parser.add(dict(zip(batch.schema.names, values, strict=True)))
        except BadRowError as error:
            bad_row(number, error)


def _as_json(column: Any) -> list[Any]:
    """A column's values as the readers of text see them: stamps as text, fractions as decimals."""
    if pa.types.is_timestamp(column.type):
        return pc.strftime(column.cast(pa.timestamp("ns")), format="%Y-%m-%d %H:%M:%S").to_pylist()  # pyright: ignore[reportAttributeAccessIssue]
    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        return [None if value is None else Decimal(repr(value)) for value in values]
    return values


def write_parquet(trace: Trace, path: str | Path) -> None:
    """Write every column of a trace in format kvreplay."""
    columns: dict[str, Any] = {"row": np.arange(len(trace), dtype=np.int64)}
    for name in (
        "arrival_ns",
        "prompt_tokens",
        "output_tokens",
        "covered_tokens",
        "session",
        "parent",
        "think_ns",
    ):
        if getattr(trace, name) is not None:
            columns[name] = getattr(trace, name)
    if trace.priority is not None:
        columns["priority"] = trace.priority
    if trace.kind is not None:
        columns["kind"] = [trace.kind_names[kind] if kind >= 0 else None for kind in trace.kind]
    if trace.nodes is not None and trace.node_ptr is not None:
        columns["granularity"] = np.full(len(trace), trace.granularity, dtype=np.int32)
        columns["nodes"] = pa.LargeListArray.from_arrays(trace.node_ptr, trace.nodes)
    table = pa.table(columns)
    with whole_file(path) as stream:
        pq.write_table(table, stream, compression="zstd", row_group_size=_BATCH)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
