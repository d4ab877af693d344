"""Request traces: formats in, one in-memory form out. Knows nothing of engines."""

from __future__ import annotations

from .errors import InputError
from .load import load_trace
from .trace import Trace

__all__ = ["InputError", "Trace", "load_trace"]
