"""Text files of rows, JSON lines or CSV: what their first lines show, and reading them with progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from .read_csv import read_csv
from .read_jsonl import read_jsonl
from .rows import BadRowError, RowParser
from .source import Progress, Source

_LINES_A_REPORT = 1 << 13
_SNIFFED_LINES = 5


class TextRows:
    """An open text file, looked at but not read yet."""

    def __init__(self, opened: Source):
        self._opened = opened
        self._lines, head = _peek(opened.lines())
        self.container = "jsonl" if any(line.lstrip().startswith(b"{") for line in head) else "csv"
        self.fields = _json_keys(head) if self.container == "jsonl" else _csv_header(head)
        """Field names that the first rows show, in order."""
        self.first_line = head[0].decode(errors="replace").strip() if head else ""

    def read(self, parser: RowParser, bad_row: Callable[[int, BadRowError], None], progress: Progress | None) -> None:
        """Append every row to the parser's columns, as the container of its layout says.

        Args:
            parser: checks and appends one row.
            bad_row: called with the line number, from 1, and what is wrong there.
            progress: called now and then with bytes read and bytes in all.
        """
        lines = self._lines if progress is None else _reporting(self._lines, self._opened, progress)
        if parser.layout.container == "csv":
            read_csv(lines, parser, bad_row, self._opened.name)
        else:
            read_jsonl(lines, parser, bad_row)


def _peek(lines: Iterator[bytes]) -> tuple[Iterator[bytes], list[bytes]]:
    """All lines, and the first few of them that are not blank."""
    taken: list[bytes] = []
    head: list[bytes] = []
    for line in lines:
        taken.append(line)
        if line.strip():
            head.append(line)
        if len(head) == _SNIFFED_LINES:
            break
    return chain(taken, lines), head


def _json_keys(head: list[bytes]) -> list[str]:
    """Keys in the first lines, those of broken lines too."""
    keys = (key for line in head for key in re.findall(rb'"([^"\\]{1,80})"\s*:', line))
    return list(dict.fromkeys(key.decode(errors="replace") for key in keys))


def _csv_header(head: list[bytes]) -> list[str]:
    columns = head[0].decode(errors="replace").split(",") if head else []
    return [column.strip().strip('"') for column in columns if column.strip()]


def _reporting(lines: Iterable[bytes], opened: Source, progress: Progress) -> Iterator[bytes]:
    for number, line in enumerate(lines):
        if number % _LINES_A_REPORT == 0:
            progress(opened.position, opened.total)
        yield line
    progress(opened.position, opened.total)
