"""A progress bar on stderr, where there is a terminal to show it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int | None], None]


@contextmanager
def progress_bar(what: str, *, quiet: bool = False, unit: str | None = None) -> Iterator[Report | None]:
    """A callable(done, total or None) that moves a bar; None where stderr is no terminal or `quiet`.

    With a `unit`, it also says how many of them are done, and how many a minute.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # pyright: ignore[reportMissingImports]
    from rich.progress import (  # pyright: ignore[reportMissingImports]
        BarColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()]
    if unit is not None:
        columns.insert(2, TextColumn(f"{{task.completed}}/{{task.total}} {unit}{{task.fields[rate]}}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, rate="")
        begun, first = time.monotonic(), -1

        def report(done: int, total: int | None) -> None:
            nonlocal first
            first = done if first < 0 else first
            minutes = (time.monotonic() - begun) / 60
            rate = f", {(done - first) / minutes:,.1f} a minute" if done > first and minutes > 0 else ""
            bar.update(task, completed=done, total=total, rate=rate)

        yield report
