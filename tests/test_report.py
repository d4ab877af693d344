"""The report: one page that needs nothing else, figures, and every number in a table beside them."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from kvreplay.experiments.compare import compare
from kvreplay.experiments.config import load_settings
from kvreplay.experiments.report import report
from kvreplay.experiments.run_data import load_run
from kvreplay.traces import InputError, load_trace
from run_kvreplay import kvreplay

FIGURES = ("memory", "tail_waste", "evictions", "hits", "latency", "preemptions")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Both engines in a memory so small that all happens: evictions, preemptions, queueing."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {
        engine: load_settings(None, [f"engine={engine}", "allocator.capacity_tokens=8000"])
        for engine in ("vllm", "sglang")
    }
    compare(load_trace("sample", limit=2000), settings, out=str(folder))
    return [folder / "vllm", folder / "sglang"]


@pytest.fixture(scope="module")
def written(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of their report."""
    folder = tmp_path_factory.mktemp("report")
    report(runs, str(folder), slos=[("ttft_s", "p99", 2.0)], bytes_per_token=131072)
    return folder


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    """The table beside a figure."""
    with (folder / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_there_in_three_forms(written: Path, name: str) -> None:
    assert (written / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert ET.fromstring((written / f"{name}.svg").read_text()).tag.endswith("svg")
    rows = rows_of(written, name)
    assert rows
    assert {"panel", "series", "x", "y"} == set(rows[0])
    # The panel's name has what its axes say, units included.
    assert all(re.search(r"\[.*; .+\]$", row["panel"]) for row in rows)


def test_the_page_needs_nothing_else_and_is_small(written: Path) -> None:
    page = (written / "report.html").read_text()
    assert len(page) < 5_000_000
    assert not re.findall(r"""(?:src|href)=["'](?!#)[^"']+""", re.sub(r"xmlns\S+", "", page))
    assert not re.findall(r"url\((?!#)", page)
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert page.count("<svg") == len(FIGURES)
    assert "#2f2f2f" not in page


def test_ids_within_the_page_are_distinct_and_found(written: Path) -> None:
    page = (written / "report.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


def test_hits_are_those_of_the_summaries_under_their_bounds(runs: list[Path], written: Path) -> None:
    rows = [row for row in rows_of(written, "hits") if row["panel"].startswith("By admission")]
    value = {(row["series"], row["x"]): float(row["y"]) for row in rows}
    for path in runs:
        run = load_run(path)
        assert value["first admission", run.name] == pytest.approx(100 * run.summary["prefix_hit_rate"])
        assert value["first admission", run.name] < value["optimum", run.name] < value["infinite cache", run.name]


def test_preemptions_are_marked_where_they_happened(runs: list[Path], written: Path) -> None:
    run = load_run(runs[0])
    assert run.summary["preemptions"] > 0
    marked = [row for row in rows_of(written, "memory") if row["series"].startswith("preemptions")]
    assert len(marked) >= run.summary["preemptions"]
    assert len(run.preemptions["id"]) == run.summary["preemptions"]


def test_a_quiet_run_says_that_nothing_happened(tmp_path: Path) -> None:
    settings = {"roomy": load_settings(None, ["allocator.capacity_tokens=1000000"])}
    compare(load_trace("sample", limit=5), settings, out=str(tmp_path))
    report([tmp_path / "roomy"], str(tmp_path / "out"), bounds=False)
    assert "nothing was evicted" in (tmp_path / "out" / "evictions.svg").read_text()
    assert "nobody was preempted" in (tmp_path / "out" / "preemptions.svg").read_text()


def test_the_same_runs_give_the_same_bytes(runs: list[Path], tmp_path: Path) -> None:
    for name in ("a", "b"):
        report(runs[:1], str(tmp_path / name), bounds=False)
    a, b = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in "ab")
    assert a == b


def test_from_outside(runs: list[Path], tmp_path: Path) -> None:
    done = kvreplay("report", *runs, "--out", tmp_path / "out", "--no-bounds", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "out" / "report.html")


def test_what_is_no_run_folder_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a run folder"):
        report([tmp_path], str(tmp_path / "out"))
    done = kvreplay("report", tmp_path, "--slo", "ttft<2")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--slo ttft<2: expected" in done.stderr
