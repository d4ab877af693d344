"""Run folders read back: the summary, and the tables as columns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..traces.errors import InputError

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Run:
    """One run folder. Tables are read when they are first asked for, as arrays by column name."""

    name: str
    folder: Path
    summary: dict[str, Any]

    @cached_property
    def requests(self) -> Columns:
        """A row a request, in arrival order."""
        return read_columns(self.folder / "requests.parquet")

    @cached_property
    def timeline(self) -> Columns:
        """A row a sample, at regular intervals."""
        return read_columns(self.folder / "timeline.parquet")

    @cached_property
    def evictions(self) -> Columns:
        """A row for what was dropped together."""
        return read_columns(self.folder / "evictions.parquet")

    @cached_property
    def preemptions(self) -> Columns:
        """A row a preemption."""
        return read_columns(self.folder / "preemptions.parquet")

    @property
    def engine(self) -> str:
        return self.summary["engine"]

    @property
    def has_slots(self) -> bool:
        """Whether memory is handed out as SGLang's slots or pages, not as vLLM's blocks."""
        return self.summary["allocator"] in ("token_slots", "paged_slots")

    @property
    def block_size(self) -> int:
        """Tokens a block, or a page."""
        allocator = self.summary["config"]["allocator"]
        return allocator.get("block_size", allocator.get("page_size"))

    @property
    def capacity_blocks(self) -> int:
        """Blocks or pages that can be handed out."""
        allocator = self.summary["config"]["allocator"]
        if self.engine == "sglang":
            return allocator["num_slots"] // self.block_size
        return allocator["num_blocks"] - 1

    @property
    def capacity_tokens(self) -> int:
        return self.capacity_blocks * self.block_size


def load_run(path: str | Path, name: str | None = None) -> Run:
    """Return the run that `replay --out`, `compare --out` or `sweep` wrote to the folder `path`.

    Raises:
        InputError: it is no run folder, or its summary cannot be read.
    """
    folder = Path(path)
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        raise InputError(f"{path}: expected a run folder, as `kvreplay replay TRACE --out DIR` writes it") from None
    return Run(name or folder.name, folder, summary)


def read_columns(path: Path) -> Columns:
    """Return the columns of a Parquet file as arrays.

    Raises:
        InputError: it cannot be read.
    """
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}
