"""Request traces: formats in, one in-memory form out. Knows nothing of engines."""

from __future__ import annotations

from .catalogue import builtin_names
from .errors import InputError
from .load import load_trace
from .trace import Trace
from .write import write_trace

__all__ = ["InputError", "Trace", "builtin_names", "load_trace", "write_trace"]
