"""Sweeps: what cells there are, where they run, and what is left of them when the process is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from kvreplay.experiments.replay import replay
from kvreplay.experiments.sweep import sweep
from kvreplay.experiments.sweep_cells import run_cell
from kvreplay.experiments.sweep_spec import read_specification
from kvreplay.traces import InputError, load_trace
from run_kvreplay import PROGRAM, environment, kvreplay

GRID = {
    "trace": "sample",
    "limit": 120,
    "axes": {
        "engine": ["vllm", "sglang"],
        "allocator.block_size": [16, 32],
        "allocator.capacity_tokens": [8192, 16384],
    },
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the grid, run in one process."""
    folder = tmp_path_factory.mktemp("sweep") / "whole"
    sweep(GRID, str(folder), jobs=1)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a sweep's folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_grid_has_every_combination_in_order(whole: Path) -> None:
    table = pd.read_parquet(whole / "results.parquet")
    keys = ["engine", "allocator.block_size", "allocator.capacity_tokens"]
    expected = [
        (engine, size, tokens) for engine in ("vllm", "sglang") for size in (16, 32) for tokens in (8192, 16384)
    ]
    assert list(table[keys].itertuples(index=False, name=None)) == expected
    assert table["error"].isna().all()


def test_a_cell_is_what_replay_gives(whole: Path) -> None:
    specification = read_specification(GRID)
    cell = specification.cells[5]
    summary = replay(load_trace("sample", limit=120), cell.settings)
    row = pd.read_parquet(whole / "results.parquet").iloc[5]
    assert row["ttft_s.p99"] == summary["ttft_s"]["p99"]
    assert row["evicted_blocks"] == summary["evicted_blocks"]


def test_processes_give_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    sweep(GRID, str(tmp_path / "out"), jobs=2)
    assert files(tmp_path / "out") == files(whole)


def test_a_local_dask_cluster_gives_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs the extra dask")
    sweep(GRID, str(tmp_path / "out"), jobs=1, backend="dask")
    assert files(tmp_path / "out") == files(whole)


def test_a_local_ray_gives_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    sweep(GRID, str(tmp_path / "out"), jobs=1, backend="ray")
    assert files(tmp_path / "out") == files(whole)


def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGKILL, twice, after some cells: what is there stays there, untouched, and in the end nothing is missing."""
    grid = GRID | {"limit": 1500}
    path, out = tmp_path / "grid.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(grid, sort_keys=False))
    before: dict[str, tuple[int, bytes]] = {}
    for least in (1, 3):
        process = subprocess.Popen(
            [*PROGRAM, "sweep", str(path), "--out", str(out), "-j", "2"],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while len(list(out.glob("cells/*.json"))) < least and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.wait()
        # Workers, too: they belong to the session that was started here.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        now = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.glob("cells/*.json")}
        assert len(now) >= least
        assert before.items() <= now.items()
        assert all(json.loads(content) for _, content in now.values())
        before = now
    done = kvreplay("sweep", path, "--out", out, "-j", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cells"] == 8
    assert before.items() <= {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in out.glob("cells/*.json")}.items()
    uninterrupted = tmp_path / "uninterrupted"
    sweep(grid, str(uninterrupted), jobs=1)
    # The figures are the command's; all else is the same.
    figures = {"sweep.csv", "sweep.png", "sweep.svg"}
    left = {name: content for name, content in files(out).items() if ".part" not in name}
    assert figures <= left.keys()
    assert {name: content for name, content in left.items() if name not in figures} == files(uninterrupted)


def test_what_is_there_is_not_run_again(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvreplay.experiments.sweep_cells.replay", lambda *_, **__: pytest.fail("ran again"))
    before = files(whole)
    sweep(GRID, str(whole), jobs=1)
    assert files(whole) == before


def test_another_sweep_in_the_folder_is_refused_with_what_differs(whole: Path) -> None:
    with pytest.raises(InputError, match="holds another sweep, whose limit is 120 where now it is 60"):
        sweep(GRID | {"limit": 60}, str(whole), jobs=1)
    with pytest.raises(InputError, match="holds a sweep already"):
        sweep(GRID, str(whole), jobs=1, resume=False)


def test_a_failing_cell_is_named_and_the_others_run(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump({"trace": "sample", "limit": 20, "axes": {"allocator.block_size": [24, 16]}}))
    done = kvreplay("sweep", path, "-j", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "failed: cell 0 (sample, allocator.block_size=24): allocator.block_size: 24 does not fit" in done.stderr
    table = pd.read_parquet(tmp_path / "grid" / "results.parquet")
    assert table["error"].notna().tolist() == [True, False]
    assert table["completed"].iloc[1] == 20


def test_whatever_a_cell_raises_is_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr("kvreplay.experiments.sweep_cells.replay", broken)
    cell = read_specification(GRID).cells[3]
    assert run_cell(cell, load_trace("sample", limit=2), None) == (3, {"error": "MemoryError: no more"})


def test_zip_and_cells_and_several_traces(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [0]}\n')
    zipped = {"traces": ["sample", str(tmp_path / "a.jsonl")], "zip": {"engine": ["vllm", "sglang"], "seed": [1, 2]}}
    specification = read_specification(zipped)
    assert [cell.values for cell in specification.cells] == [
        {"engine": "vllm", "seed": 1},
        {"engine": "sglang", "seed": 2},
    ] * 2
    listed = {"trace": "sample", "cells": [{"seed": 1}, {"allocator.block_size": 32}]}
    assert [cell.settings.allocator.block_size for cell in read_specification(listed).cells] == [16, 32]


def test_run_folders_on_request(tmp_path: Path) -> None:
    sweep({"trace": "sample", "limit": 20}, str(tmp_path / "out"), jobs=1, run_folders=True)
    assert (tmp_path / "out" / "runs" / "00000" / "requests.parquet").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "expected one of trace"),
        ({"trace": "sample", "axis": {}}, "unknown key axis"),
        ({"trace": "sample", "axes": {"allocator.block_size": 16}}, "axes.allocator.block_size: expected a list"),
        ({"trace": "sample", "axes": {"allocator.blok_size": [16]}}, "did you mean allocator.block_size"),
        ({"trace": "sample", "zip": {"seed": [1, 2], "engine": ["vllm"]}}, "lists of one length"),
        ({"trace": "sample", "zip": {"seed": [1]}, "axes": {"seed": [1]}}, "axes and zip: expected one of them"),
        ({"trace": "sample", "cells": [1]}, "cells: expected a list of settings"),
        ({"trace": "sample", "limit": 0}, "limit: expected"),
        ({"traces": ["sample", "sample"]}, "once"),
    ],
)
def test_a_wrong_specification_is_one_line(content: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    done = kvreplay("sweep", "sweep.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: sweep.yaml")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
