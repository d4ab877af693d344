"""`compare`: the same trace through several setups, side by side."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..sim.settings import Settings
from ..traces.errors import InputError
from ..traces.trace import Trace
from .compare_rows import compared_rows
from .compare_words import differences
from .replay import replay
from .run_data import Run, load_run
from .setups import make_setups

Progress = Callable[[int, int | None], None]


def compare(
    trace: Trace,
    setups: Mapping[str, Settings] | None = None,
    *,
    out: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Replay `trace` through each of the setups.

    Args:
        trace: from `load_trace`.
        setups: settings by name; vLLM and SGLang as they ship if None, which only built-in traces have a capacity for.
        out: a folder for a run folder each, by name.
        progress: called now and then with the requests done and all requests, of all setups together.

    Returns:
        `setups`: the summaries, each with its name as `setup`; `rows`: the table as [section, label, a text a setup];
        `differences`: what differs from the first setup, in words. Ready for JSON.

    Raises:
        InputError: as `replay` does; the message names the setup.
    """
    if setups is None:
        setups = {setup.name: setup.settings for setup in make_setups(None, ())}
    with ExitStack() as stack:
        folder = Path(out or stack.enter_context(tempfile.TemporaryDirectory(prefix="kvreplay-")))
        runs: list[Run] = []
        timings: list[dict[str, Any]] = []
        for name, settings in setups.items():
            target = folder / folder_name(name)
            report = _part(progress, len(runs), len(setups), len(trace))
            try:
                summary = replay(trace, settings, out=str(target), progress=report)
            except InputError as error:
                raise InputError(f"setup {name}: {error}") from None
            timings.append(summary)
            runs.append(load_run(target, name))
        return {
            "trace": trace.name,
            "setups": [{"setup": run.name} | summary for run, summary in zip(runs, timings, strict=True)],
            "rows": compared_rows(runs),
            "differences": differences(runs),
        }


def folder_name(name: str) -> str:
    """Return `name` as it can stand in a path."""
    return re.sub(r"[^\w.=,-]+", "_", name).strip("_.") or "setup"


def _part(progress: Progress | None, done_setups: int, setups: int, requests: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, _: progress(done_setups * requests + done, setups * requests)
