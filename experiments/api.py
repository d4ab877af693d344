"""The public Python interface: what the commands do, as functions.

```python
>>> from kvreplay.experiments.api import load_settings, load_trace, replay

>>> summary = replay(load_trace("sample"), load_settings(None, ["allocator.num_blocks=1001"]))
```

| function | does |
|---|---|
| `load_trace` | reads a trace, by path or name |
| `load_settings` | settings from a YAML file and `key.path=value` texts |
| `replay` | one simulation; returns the summary, and writes a run folder where asked to |
| `compare` | the same trace through several settings |
| `sweep` | a grid of replays, kept cell by cell in a folder |
| `curve` | hit rate against capacity, for every capacity at once |
| `plan` | the least memory or the highest load that meets objectives |
| `report` | figures and a page from run folders |
| `load_run` | a run folder read back |

What is wrong with an input is raised as `InputError`; its message names the place, the problem and the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..traces.errors import InputError
from ..traces.load import load_trace
from .compare import compare
from .config import load_settings
from .curve import curve
from .plan import plan
from .replay import replay
from .run_data import Run, load_run
from .sweep import sweep

if TYPE_CHECKING:
    from .report import report

__all__ = [
    "InputError",
    "Run",
    "compare",
    "curve",
    "load_run",
    "load_settings",
    "load_trace",
    "plan",
    "replay",
    "report",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """`report` brings the plotting library along, and is imported only where it is used."""
    if name == "report":
        from .report import report

        return report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
