"""Evictions on their way to a Parquet file, with a bounded part of them in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

_FIELDS = ("time_ns", "block", "age_ns", "hits", "blocks", "asked_again_ns")
_NEVER = -1
_CHUNK = 1 << 18
"""Rows kept in memory, and written at once."""
_SECOND = 1e9


class EvictionFile:
    """Takes eviction rows, whose last column is learnt only later, and writes them as Parquet in the end.

    Full chunks go to an unnamed temporary file in `folder` as rows of int64; a prefix that is asked for again after
    that is entered there in place. Use it as a context manager: the temporary file goes with it.
    """

    def __init__(self, folder: Path) -> None:
        self._spill: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        self._chunk: Int64 = np.empty((_CHUNK, len(_FIELDS)), np.int64)
        self._filled = 0
        self._spilled = 0
        self._map: Int64 | None = None
        """The rows that were spilled."""

    def __enter__(self) -> EvictionFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._spill.close()

    def __len__(self) -> int:
        return self._spilled + self._filled

    def add(self, time_ns: Int64, block: Int64, age_ns: Int64, hits: Int64, blocks: Int64) -> None:
        """Add rows; all arrays int64 [k]. `blocks`: how many were dropped together, of which `block` is the first."""
        done = 0
        while done < len(block):
            part = slice(done, done + _CHUNK - self._filled)
            rows = self._chunk[self._filled : self._filled + len(block[part])]
            for column, values in enumerate((time_ns, block, age_ns, hits, blocks)):
                rows[:, column] = values[part]
            rows[:, -1] = _NEVER
            done += len(rows)
            self._filled += len(rows)
            if self._filled == _CHUNK:
                self._spill_chunk()

    def asked_again(self, rows: Int64, time_ns: int) -> None:
        """Enter when the prefixes of these rows were asked for."""
        here = rows >= self._spilled
        self._chunk[rows[here] - self._spilled, -1] = time_ns
        if self._map is not None:
            self._map[rows[~here], -1] = time_ns

    def _spill_chunk(self) -> None:
        self._spill.seek(0, os.SEEK_END)
        self._spill.write(self._chunk[: self._filled].astype("<i8", copy=False).tobytes())
        self._spill.flush()
        self._spilled += self._filled
        self._filled = 0
        self._map = np.memmap(self._spill, "<i8", "r+", shape=(self._spilled, len(_FIELDS)))

    def write_parquet(self, file: BinaryIO) -> None:
        """Write all rows to `file`, in order, with times in seconds."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema(
            [
                ("time_s", pa.float64()),
                ("block", pa.int32()),
                ("age_s", pa.float64()),
                ("hits", pa.int32()),
                ("blocks", pa.int32()),
                ("asked_again", pa.bool_()),
                ("asked_again_after_s", pa.float64()),
            ]
        )
        with pq.ParquetWriter(file, schema) as writer:
            for rows in self._chunks():
                time, block, age, hits, blocks, again = rows.T
                later = again >= 0
                after = np.where(later, (again - time) / _SECOND, np.nan)
                columns = [
                    pa.array(time / _SECOND),
                    pa.array(block.astype(np.int32)),
                    pa.array(age / _SECOND),
                    pa.array(hits.astype(np.int32)),
                    pa.array(blocks.astype(np.int32)),
                    pa.array(later),
                    pa.array(after, mask=~later),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))

    def _chunks(self) -> Iterator[Int64]:
        if self._map is not None:
            for start in range(0, self._spilled, _CHUNK):
                yield self._map[start : start + _CHUNK]
        yield self._chunk[: self._filled]

    def figures(self) -> dict[str, float | int | None]:
        """Return what the rows say in all, each block counted: median age (s), shares never hit and asked for again."""
        if not len(self):
            return {"rows": 0, "age_p50_s": None, "never_hit_share": None, "asked_again_share": None}
        parts = [rows[:, [2, 4]] for rows in self._chunks()]
        ages, blocks = np.concatenate(parts).T
        unused = again = 0
        for rows in self._chunks():
            unused += int(rows[rows[:, 3] == 0, 4].sum())
            again += int(rows[rows[:, -1] >= 0, 4].sum())
        order = np.argsort(ages, kind="stable")
        counted = np.cumsum(blocks[order])
        middle = order[np.searchsorted(counted, (counted[-1] + 1) // 2)]
        return {
            "rows": len(self),
            "age_p50_s": float(ages[middle] / _SECOND),
            "never_hit_share": unused / int(counted[-1]),
            "asked_again_share": again / int(counted[-1]),
        }
