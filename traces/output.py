"""Output files that appear whole or not at all."""

from __future__ import annotations

import gzip
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from .errors import InputError


@contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """A binary stream to `path` ('-' for stdout), compressed by its suffix (.gz, .zst).

    The file is written under a temporary name beside `path` and takes its place when the block ends well.

    Raises:
        InputError: it cannot be written there.
    """
    if str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        file = temporary.open("wb")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    try:
        with file, _compressed(file, path.suffix) as stream:
            yield stream
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _compressed(file: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".gz":
        # Neither name nor time in the header: the same rows give the same bytes.
        return cast(BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
    if suffix == ".zst":
        import zstandard  # pyright: ignore[reportMissingImports]

        return zstandard.ZstdCompressor().stream_writer(file, closefd=False)
    return cast(BinaryIO, io.BufferedWriter(cast(io.RawIOBase, file)))
