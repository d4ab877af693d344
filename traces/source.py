"""Opening what the user names: a file or stdin, plain or compressed, with the bytes read counted."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from .errors import InputError

Progress = Callable[[int, int | None], None]
_BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 18


class _Counting(io.RawIOBase):
    """A raw stream that counts what is read through it."""

    def __init__(self, raw: BinaryIO):
        self.raw = raw
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        data = self.raw.read1(len(buffer)) if isinstance(self.raw, io.BufferedReader) else self.raw.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


class Source:
    """An open trace: its lines or its whole content, uncompressed. A context manager."""

    def __init__(self, source: str, name: str):
        """Open the file `source` ('-' for stdin), called `name` in messages.

        Raises:
            InputError: it cannot be opened.
        """
        self.name = "stdin" if source == "-" else name
        self.total: int | None = None
        if source == "-":
            raw = sys.stdin.buffer
        else:
            try:
                raw = Path(source).open("rb")  # noqa: SIM115 - closed by __exit__
                self.total = Path(source).stat().st_size
            except OSError as error:
                raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None
        self._raw = raw
        self._counting = _Counting(raw)
        self.stream = self._decompressed(io.BufferedReader(self._counting, _BUFFER))

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        if self._raw is not sys.stdin.buffer:
            self._raw.close()

    @property
    def position(self) -> int:
        """Bytes read so far, before decompression; comparable with `total`."""
        return self._counting.count

    def lines(self) -> Iterator[bytes]:
        """The lines, with their ends, without a byte-order mark.

        Raises:
            InputError: the compressed data is damaged or cut short.
        """
        try:
            yield self.stream.readline().removeprefix(_BOM)
            yield from self.stream
        except _damage() as error:
            raise InputError(f"{self.name}: the compressed data is damaged or cut short ({error})") from None

    @property
    def is_parquet(self) -> bool:
        """Whether the (uncompressed) content begins as Parquet files do."""
        return self._guarded_peek() == b"PAR1"

    @property
    def seekable(self) -> BinaryIO | None:
        """The file itself, where it is one and not compressed."""
        if self.total is None or not isinstance(self.stream.raw, _Counting):
            return None
        self._raw.seek(0)
        return self._raw

    def content(self) -> bytes:
        """All of it, for formats that cannot be read from the front."""
        return b"".join(self.lines())

    def _guarded_peek(self) -> bytes:
        try:
            return self.stream.peek(4)[:4]
        except _damage():
            return b""  # reading on says what is wrong

    @staticmethod
    def _decompressed(stream: io.BufferedReader) -> io.BufferedReader:
        magic = stream.peek(4)[:4]
        if magic.startswith(b"\x1f\x8b"):
            return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=stream)), _BUFFER)
        if magic == b"\x28\xb5\x2f\xfd":
            import zstandard  # pyright: ignore[reportMissingImports]

            reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
            return io.BufferedReader(cast(io.RawIOBase, reader), _BUFFER)
        return stream


def _damage() -> tuple[type[Exception], ...]:
    """What the decompressors raise; zstandard only where it has been imported."""
    zstandard = sys.modules.get("zstandard")
    zstd = (zstandard.ZstdError,) if zstandard else ()
    return (gzip.BadGzipFile, EOFError, zlib.error, *zstd)
