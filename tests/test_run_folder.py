"""The run folder: its columns and units, and that its files, the summary and the layout log say the same."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import assume, given
from kvreplay.experiments.eviction_file import EvictionFile
from kvreplay.experiments.replay import replay
from kvreplay.sim.settings import AllocatorSettings, ArrivalSettings, SchedulerSettings, Settings
from kvreplay.traces import load_trace
from naive_vllm import NaiveBlockPool, NaiveScheduler, _Live, _Scheduled
from scenarios import Scenario, comes_to_an_end, naive_engine, scenarios, simulation_of

FILES = {
    "summary.json",
    "requests.parquet",
    "timeline.parquet",
    "preemptions.parquet",
    "evictions.parquet",
    "config.yaml",
}
REQUESTS = 800
LONGEST = 5_000
# Half the capacity that comes with the sample: evictions, preemptions and queueing all happen.
SETTINGS = Settings(
    allocator=AllocatorSettings(capacity_tokens=8_000),
    scheduler=SchedulerSettings(max_model_len=LONGEST, max_num_seqs=24, scheduler_reserve_full_isl=False),
    arrivals=ArrivalSettings(scale=2.0),
)


class Run:
    """One replay with everything written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        self.trace = load_trace("sample", limit=REQUESTS)
        self.returned = replay(
            self.trace,
            SETTINGS,
            out=str(self.folder),
            layout_log=str(folder / "layout.jsonl.gz"),
            perfetto=str(folder / "spans.json"),
        )
        self.summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        self.requests = pd.read_parquet(self.folder / "requests.parquet")
        self.timeline = pd.read_parquet(self.folder / "timeline.parquet")
        self.evictions = pd.read_parquet(self.folder / "evictions.parquet")
        with gzip.open(folder / "layout.jsonl.gz", "rt") as file:
            self.lines = [json.loads(line) for line in file]
        self.spans = json.loads((folder / "spans.json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("folder"))


def test_the_run_is_one_in_which_much_happens(run: Run) -> None:
    summary = run.summary
    assert summary["completed"] > 700
    assert 0 < summary["rejected"] < 40
    assert min(summary["evicted_blocks"], summary["preemptions"], summary["cached_prompt_tokens"]) > 0


def test_holds_these_files_and_no_others(run: Run) -> None:
    assert {path.name for path in run.folder.iterdir()} == FILES


def test_summary_is_what_was_returned_but_for_the_times_it_took(run: Run) -> None:
    assert set(run.returned) - set(run.summary) == {"wall_s", "cpu_s"}
    assert run.summary == {key: value for key, value in run.returned.items() if key in run.summary}


def test_config_is_the_effective_one(run: Run) -> None:
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert config == run.summary["config"]
    assert config["allocator"]["num_blocks"] == 8_000 // 16 + 1
    assert config["arrivals"]["scale"] == 2.0


# ---------------------------------------------------------------------- requests


def test_requests_have_the_promised_columns(run: Run) -> None:
    types = run.requests.dtypes.astype(str)
    for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finished_s"):
        assert types[name] == "float64"
    for name in ("id", "prompt_tokens", "output_tokens", "cached_tokens", "preemptions", "tail_waste_tokens"):
        assert types[name].startswith("int")
    assert types["rejected"] == "bool"


def test_requests_are_the_trace_s_in_arrival_order(run: Run) -> None:
    assert run.requests["id"].tolist() == list(range(REQUESTS))
    assert run.requests["prompt_tokens"].tolist() == run.trace.prompt_tokens.tolist()
    assert run.requests["arrival_s"].to_numpy() == pytest.approx(run.trace.arrival_ns / 2.0 / 1e9)
    assert run.requests["arrival_s"].is_monotonic_increasing


def test_times_of_a_request_are_in_order(run: Run) -> None:
    done = run.requests[~run.requests["rejected"]]
    times = ["arrival_s", "first_scheduled_s", "first_token_s", "finished_s"]
    assert done[times].notna().all().all()
    assert (done["arrival_s"] <= done["first_scheduled_s"]).all()
    assert (done["first_scheduled_s"] < done["first_token_s"]).all()
    assert (done["first_token_s"] <= done["finished_s"]).all()
    room = LONGEST - run.trace.prompt_tokens[done.index]
    assert (done["output_tokens"] == np.minimum(run.trace.output_tokens[done.index], room)).all()


def test_rejected_requests_have_times_and_counts_of_nothing(run: Run) -> None:
    out = run.requests[run.requests["rejected"]]
    assert out["id"].tolist() == run.summary["rejected_requests"]
    assert out["arrival_s"].notna().all()
    assert out[["first_scheduled_s", "first_token_s", "finished_s"]].isna().all().all()
    counts = ["output_tokens", "cached_tokens", "preemptions", "tail_waste_tokens"]
    assert (out[counts] == 0).all().all()
    assert set(out["id"]) == set(np.flatnonzero(run.trace.prompt_tokens >= LONGEST))


def test_cached_tokens_are_whole_blocks_and_never_the_whole_prompt(run: Run) -> None:
    requests = run.requests
    assert (requests["cached_tokens"] % 16 == 0).all()
    assert (requests["cached_tokens"] < requests["prompt_tokens"]).all()
    assert (requests["tail_waste_tokens"].between(0, 15)).all()


def test_requests_add_up_to_the_summary(run: Run) -> None:
    requests, summary = run.requests, run.summary
    done = requests[~requests["rejected"]]
    assert summary["requests"] == REQUESTS
    assert summary["completed"] == len(done)
    assert summary["rejected"] == REQUESTS - len(done)
    assert summary["prompt_tokens"] == done["prompt_tokens"].sum()
    assert summary["output_tokens"] == done["output_tokens"].sum()
    assert summary["cached_prompt_tokens"] == done["cached_tokens"].sum()
    assert summary["prefix_hit_rate"] == pytest.approx(done["cached_tokens"].sum() / done["prompt_tokens"].sum())
    assert summary["readmission_cached_tokens"] == done["readmission_cached_tokens"].sum()
    assert summary["preemption_lost_tokens"] == done["preemption_lost_tokens"].sum()
    assert summary["preemptions"] == done["preemptions"].sum()
    assert summary["tail_waste"]["tokens_mean"] == pytest.approx(done["tail_waste_tokens"].mean())
    assert summary["tail_waste"]["tokens_max"] == done["tail_waste_tokens"].max()
    assert summary["simulated_s"] == pytest.approx(done["finished_s"].max())


def test_latencies_follow_from_the_requests(run: Run) -> None:
    done = run.requests[~run.requests["rejected"]]
    several = done[done["output_tokens"] > 1]
    expected = {
        "ttft_s": done["first_token_s"] - done["arrival_s"],
        "e2e_s": done["finished_s"] - done["arrival_s"],
        "queue_s": done["first_scheduled_s"] - done["arrival_s"],
        "tpot_s": (several["finished_s"] - several["first_token_s"]) / (several["output_tokens"] - 1),
    }
    for name, values in expected.items():
        spread = run.summary[name]
        assert spread["mean"] == pytest.approx(values.mean())
        assert spread["max"] == pytest.approx(values.max())
        for percent in (50, 90, 95, 99):
            assert spread[f"p{percent}"] == pytest.approx(np.percentile(values, percent))


def test_sessions_are_kept_with_their_requests(run: Run) -> None:
    assert run.trace.session is not None
    assert run.requests["session"].tolist() == run.trace.session.tolist()


# ---------------------------------------------------------------------- timeline


def test_timeline_has_the_promised_columns(run: Run) -> None:
    columns = ["running", "waiting", "used_blocks", "cached_blocks", "free_blocks", "tail_waste_tokens"]
    assert run.timeline.columns.tolist() == ["time_s", *columns, "evicted_blocks"]
    types = run.timeline.dtypes.astype(str)
    assert types.pop("time_s") == "float64"
    assert set(types) == {"int64"}


def test_every_block_is_used_cached_or_free(run: Run) -> None:
    timeline = run.timeline
    assert ((timeline["used_blocks"] + timeline["cached_blocks"] + timeline["free_blocks"]) == 500).all()
    assert (timeline >= 0).all().all()


def test_timeline_goes_forward_within_the_run(run: Run) -> None:
    timeline, summary = run.timeline, run.summary
    assert timeline["time_s"].is_monotonic_increasing
    assert timeline["time_s"].is_unique
    assert timeline["time_s"].iloc[-1] <= summary["simulated_s"]
    assert timeline["evicted_blocks"].is_monotonic_increasing
    assert timeline["evicted_blocks"].iloc[-1] <= summary["evicted_blocks"]
    assert timeline["running"].max() <= summary["running"]["peak"] <= 24
    assert timeline["used_blocks"].max() / 500 <= summary["kv_usage"]["peak"] <= 1


def test_timeline_agrees_with_the_layout_log(run: Run) -> None:
    """A sample is the state right after the scheduling of a step that the log has too."""
    by_time: dict[float, list[dict[str, Any]]] = {}
    evicted = 0
    for line in run.lines[:-1]:
        evicted += line["evicted"]
        by_time.setdefault(line["time_ns"] / 1e9, []).append(line | {"so_far": evicted})
    for row in run.timeline.itertuples():
        states = {(line["free"], line["so_far"]) for line in by_time[row.time_s]}
        assert (row.cached_blocks + row.free_blocks, row.evicted_blocks) in states


def test_timeline_of_a_long_run_is_bounded(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvreplay.sim.timeline._FIRST_INTERVAL_NS", 5_000_000)
    summary = replay(run.trace.head(300), SETTINGS, out=str(tmp_path))
    assert summary["steps"] > 3 * 4096
    times = pd.read_parquet(tmp_path / "timeline.parquet")["time_s"]
    assert 2048 <= len(times) <= 4096
    assert times.iloc[-1] > 0.9 * summary["simulated_s"]
    assert times.diff().min() > 0


# -------------------------------------------------------------------- preemptions


def test_preemptions_are_those_of_the_layout(run: Run) -> None:
    table = pd.read_parquet(run.folder / "preemptions.parquet")
    logged = [(line["time_ns"] / 1e9, row) for line in run.lines[:-1] for row in line["preempted"]]
    assert list(table.itertuples(index=False, name=None)) == logged
    assert logged


# ---------------------------------------------------------------------- evictions


def test_evictions_have_the_promised_columns(run: Run) -> None:
    types = run.evictions.dtypes.astype(str).to_dict()
    assert types == {
        "time_s": "float64",
        "block": "int32",
        "age_s": "float64",
        "hits": "int32",
        "blocks": "int32",
        "asked_again": "bool",
        "asked_again_after_s": "float64",
    }


def test_a_row_an_evicted_block(run: Run) -> None:
    evictions = run.evictions
    assert len(evictions) == run.summary["evicted_blocks"] == sum(line["evicted"] for line in run.lines[:-1])
    assert evictions["time_s"].is_monotonic_increasing
    assert evictions["block"].between(1, 500).all()
    assert (evictions["age_s"] >= 0).all()
    assert (evictions["age_s"] <= evictions["time_s"]).all()
    assert (evictions["hits"] >= 0).all()
    assert (evictions["blocks"] == 1).all()
    assert (evictions["asked_again_after_s"].notna() == evictions["asked_again"]).all()
    assert (evictions["asked_again_after_s"].dropna() >= 0).all()


def test_eviction_figures_follow_from_the_rows(run: Run) -> None:
    figures, evictions = run.summary["evictions"], run.evictions
    assert figures["rows"] == len(evictions)
    assert figures["age_p50_s"] == pytest.approx(evictions["age_s"].median())
    assert figures["never_hit_share"] == pytest.approx((evictions["hits"] == 0).mean())
    assert figures["asked_again_share"] == pytest.approx(evictions["asked_again"].mean())


class WatchedPool(NaiveBlockPool):
    """Keeps a row an eviction: [time, block, age, hits, asked again after (-1: never)]."""

    engine: Any

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.rows: list[list[int]] = []
        self.row_of: dict[int, int] = {}
        self.last_use = dict.fromkeys(self.free, 0)
        self.hits = dict.fromkeys(self.free, 0)

    def _evict(self, block: int) -> None:
        prefix = self.prefix_of.get(block)
        if prefix is not None:
            self.row_of[prefix] = len(self.rows)
            now = self.engine.now
            self.rows.append([now, block, now - self.last_use[block], self.hits[block], -1])
            self.hits[block] = 0
        super()._evict(block)

    def touch(self, block: int) -> None:
        self.hits[block] += 1
        super().touch(block)

    def release(self, blocks: list[int]) -> None:
        super().release(blocks)
        self.last_use |= {block: self.engine.now for block in blocks if self.refs[block] == 0}

    def asked(self, prefix: int, rows_before: int) -> None:
        """A request was admitted that has to compute `prefix`."""
        row = self.row_of.get(prefix, rows_before)
        if row < rows_before:
            del self.row_of[prefix]
            self.rows[row][4] = self.engine.now - self.rows[row][0]


class WatchedScheduler(NaiveScheduler):
    """Tells the pool what admitted requests asked for and did not find."""

    pool: WatchedPool

    def _try_admit(self, live: _Live, budget: int, cap: int) -> _Scheduled | None:
        before = len(self.pool.rows)
        entry = super()._try_admit(live, budget, cap)
        if entry is not None and self.caching:
            for index in range(entry.computed // self.block_size, (len(live.known) - 1) // self.block_size):
                self.pool.asked(self._prefix(live, index), before)
        return entry


def naive_evictions(scenario: Scenario) -> list[list[int]]:
    """The rows that the naive engine would write."""
    engine = naive_engine(scenario)
    engine.scheduler.__class__ = WatchedScheduler
    pool = engine.scheduler.pool = WatchedPool(scenario.num_blocks)
    pool.engine = engine
    engine.run()
    return pool.rows


@given(scenarios(prefix_caching=True))
def test_evictions_are_those_of_the_naive_engine(scenario: Scenario) -> None:
    assume(comes_to_an_end(scenario))
    expected = naive_evictions(scenario)
    for fast_forward in (True, False):
        simulation = simulation_of(scenario, scenario.trace(), fast_forward=fast_forward)
        rows = _Rows()
        simulation.observe(rows)
        simulation.run()
        assert rows.rows == expected


class _Rows:
    """An eviction sink in memory."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def add(
        self, time_ns: np.ndarray, block: np.ndarray, age_ns: np.ndarray, hits: np.ndarray, blocks: np.ndarray
    ) -> None:
        assert (blocks == 1).all()
        columns = (column.tolist() for column in (time_ns, block, age_ns, hits))
        self.rows += [[*row, -1] for row in zip(*columns, strict=True)]

    def asked_again(self, rows: np.ndarray, time_ns: int) -> None:
        for row in rows.tolist():
            self.rows[row][4] = time_ns - self.rows[row][0]


def test_evictions_beyond_what_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvreplay.experiments.eviction_file._CHUNK", 10)
    with EvictionFile(tmp_path) as evictions:
        for start in range(0, 95, 5):
            numbers = np.arange(start, start + 5)
            evictions.add(numbers * 1_000_000_000, numbers, numbers * 1_000_000, numbers % 3, np.ones(5, np.int64))
        evictions.asked_again(np.array([0, 44, 94]), 200_000_000_000)
        assert len(evictions) == 95
        figures = evictions.figures()
        with (tmp_path / "e.parquet").open("wb") as file:
            evictions.write_parquet(file)
    assert [path.name for path in tmp_path.iterdir()] == ["e.parquet"]
    table = pd.read_parquet(tmp_path / "e.parquet")
    assert table["block"].tolist() == list(range(95))
    assert table["time_s"].tolist() == list(range(95))
    assert np.flatnonzero(table["asked_again"]).tolist() == [0, 44, 94]
    assert table["asked_again_after_s"].dropna().tolist() == [200, 156, 106]
    assert figures["rows"] == 95
    assert figures["asked_again_share"] == pytest.approx(3 / 95)


# ---------------------------------------------------------------------- the whole folder


def test_files_are_the_same_whether_or_not_steps_are_done_in_one_go(run: Run, tmp_path: Path) -> None:
    slowly = replace(SETTINGS, sim=replace(SETTINGS.sim, fast_forward=False))
    replay(run.trace, slowly, out=str(tmp_path))
    for name in ("requests.parquet", "timeline.parquet", "evictions.parquet"):
        assert (tmp_path / name).read_bytes() == (run.folder / name).read_bytes(), name
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary.pop("config") != run.summary["config"]
    assert summary == {key: value for key, value in run.summary.items() if key != "config"}


def test_parquet_files_are_plain_tables(run: Run) -> None:
    for name in ("requests.parquet", "timeline.parquet", "evictions.parquet"):
        assert pq.ParquetFile(run.folder / name).schema_arrow.names


# ---------------------------------------------------------------------- the Perfetto trace


def test_perfetto_spans_lie_within_the_run_and_do_not_overlap(run: Run) -> None:
    end = run.summary["simulated_s"] * 1e6
    tracks: dict[int, list[tuple[float, float, str]]] = {}
    for event in run.spans["traceEvents"]:
        if event["ph"] == "X":
            assert event["dur"] > 0
            assert 0 <= event["ts"] <= event["ts"] + event["dur"] <= end + 1
            tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
    assert set(tracks) == set(range(REQUESTS)) - set(run.summary["rejected_requests"])
    for spans in tracks.values():
        spans.sort()
        for (_, end, before), (start, _, after) in pairwise(spans):
            # A chunk may still be on the device when its request is preempted.
            assert start >= end - 0.001 or (before, after) == ("prefill", "preempted")
        assert {name for *_, name in spans} <= {"waiting", "prefill", "decode", "preempted"}


def test_perfetto_shows_each_preemption_and_the_samples(run: Run) -> None:
    events = run.spans["traceEvents"]
    preempted = [event for event in events if event.get("name") == "preempted"]
    assert len(preempted) == run.summary["preemptions"]
    blocks = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "blocks"]
    assert len(blocks) == len(run.timeline)
    assert all(sum(values.values()) == 500 for values in blocks)


def test_perfetto_trace_is_bounded(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvreplay.experiments.perfetto._MOST_EVENTS", 100)
    replay(run.trace.head(300), SETTINGS, perfetto=str(tmp_path / "p.json"))
    spans = json.loads((tmp_path / "p.json").read_text())
    assert sum(event["ph"] == "X" for event in spans["traceEvents"]) == 100
    assert 0 < spans["otherData"]["spans_end_at_s"] < 1e6
