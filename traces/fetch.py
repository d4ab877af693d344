"""Downloading the published traces."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from .catalogue import PUBLISHED, cache_folder
from .errors import InputError
from .output import whole_file
from .source import Progress

_CHUNK = 1 << 18
_TIMEOUT_S = 30


def fetch(name: str, progress: Progress | None = None) -> tuple[Path, str]:
    """Download a published trace into the cache folder, unless it lies there.

    Returns:
        Its path, and the sha256 sum of the file.

    Raises:
        InputError: no such trace, no network, or the file is not the one that was expected.
    """
    if name not in PUBLISHED:
        raise InputError(f"{name}: no such published trace, known are {', '.join(PUBLISHED)}")
    published = PUBLISHED[name]
    path = cache_folder() / published.file
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path.parent}: cannot be made: {error.strerror}") from None
        _download(name, published.url, published.sha256, path, progress)
    return path, _sum_of(path)


def _download(name: str, url: str, expected: str | None, path: Path, progress: Progress | None) -> None:
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, whole_file(path) as file:
            total = int(answer.headers.get("Content-Length") or 0) or None
            done = 0
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
            if total is not None and done < total:
                raise OSError(f"it broke off after {done} of {total} bytes")
            if expected not in (None, digest.hexdigest()):
                raise InputError(f"{name}: {url} has sha256 {digest.hexdigest()}, expected {expected}")
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"{name}: {url} cannot be downloaded ({reason}); is there a network?") from None


def _sum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
