"""Running the program as users do: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAM = (sys.executable, "-m", "kvreplay.experiments")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with `more`, and without what would colour or widen the output."""
    plain = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "COLUMNS")}
    return plain | dict(more or {})


def kvreplay(
    *args: object, stdin: bytes = b"", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `kvreplay ARGS` and return what it printed."""
    done = subprocess.run(
        [*PROGRAM, *map(str, args)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=environment(env),
        timeout=300,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
