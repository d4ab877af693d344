"""Every kernel compiles for GPUs that are not there, and the default configurations spill no registers.

The whole matrix takes some ten minutes: KVREPLAY_COMPILE_ALL=1 runs it. docs/kernels.md has its results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs the extra `kernels`")
triton = pytest.importorskip("triton", reason="needs the extra `kernels`")

ALL = bool(os.environ.get("KVREPLAY_COMPILE_ALL"))
MOST_SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""What one program may have (CUDA C++ programming guide, technical specifications by compute capability)."""


def compiled(*arguments: str) -> list[dict]:
    """Rows of the report, made in a process whose Triton compiles (here it interprets)."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "kvreplay.kernels.compile_report", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(rows: list[dict], arch: int) -> None:
    for row in rows:
        name = f"{row['operation']} ({row['config']}) on sm_{arch}"
        assert row["arch"] == arch
        assert 0 < row["registers"] <= 255, name
        assert row["shared_bytes"] <= MOST_SHARED_BYTES[arch], name
        # All registers of a multiprocessor are 65,536.
        assert row["registers"] * row["threads"] <= 65_536, name


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_default_configurations_compile_without_spills(arch):
    only = () if arch == 90 or ALL else ("--only", "attention")
    rows = compiled("--arch", str(arch), "--default", *only)
    check(rows, arch)
    assert [row for row in rows if row["spill_bytes"]] == []
    operations = {row["operation"] for row in rows}
    assert {"decode attention", "prefill attention"} <= operations
    if arch == 90:
        assert "write K and V, fp8" in operations
        assert len(operations) == 12


@pytest.mark.skipif(not ALL, reason="takes minutes: set KVREPLAY_COMPILE_ALL=1")
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_every_configuration_compiles(arch):
    rows = compiled("--arch", str(arch))
    check(rows, arch)
    fp8 = [row for row in rows if "fp8" in row["operation"]]
    assert bool(fp8) == (arch > 80), "e4m3 begins with sm_89"
