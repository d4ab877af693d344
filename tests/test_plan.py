"""Plans: the search, the objectives, and answers that replays confirm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvreplay.experiments.config import load_settings
from kvreplay.experiments.plan import plan
from kvreplay.experiments.plan_axes import Capacity, Load
from kvreplay.experiments.plan_point import Point
from kvreplay.experiments.plan_search import bracket, monotone, search
from kvreplay.experiments.plan_slo import read_slo
from kvreplay.experiments.replay import replay
from kvreplay.sim.settings import Settings
from kvreplay.traces import InputError, Trace, load_trace
from run_kvreplay import kvreplay


@pytest.fixture(scope="module")
def trace() -> Trace:
    """A part of the sample that is served well with its capacity, and badly with half of it."""
    return load_trace("sample", limit=800)


def point(value: Any, met: bool) -> Point:
    """A replay that never happened."""
    busy = {"evicted_blocks": 1, "preemptions": 0, "kv_usage": {"peak": 1.0}, "rejected": 0}
    return Point(value, met, {}, 0.0, {}, "", busy)


@given(st.integers(1, 5000), st.integers(1, 3))
def test_capacity_search_ends_at_the_least_that_will_do(threshold: int, jobs: int) -> None:
    axis = Capacity.__new__(Capacity)
    axis.base, axis.precision, axis.start, axis._size = Settings(), 0.0, 7, 16
    seen: list[int] = []

    def evaluate(values: Any) -> list[Point]:
        seen.extend(values)
        return [point(value, value >= threshold) for value in values]

    points = search(axis, evaluate, jobs)
    failed, answer = bracket(axis, points)
    assert answer is not None
    assert answer.value == max(threshold, 7)
    assert (failed is None) == (threshold <= 7)
    assert failed is None or failed.value == threshold - 1
    assert len(seen) == len(set(seen)) <= 40
    assert monotone(axis, points)


@given(st.floats(0.01, 50), st.integers(1, 3))
def test_load_search_ends_just_below_what_is_too_much(threshold: float, jobs: int) -> None:
    axis = Load(Settings(), 0.01)
    points = search(axis, lambda values: [point(value, value < threshold) for value in values], jobs)
    failed, answer = bracket(axis, points)
    assert answer is not None
    assert failed is not None
    assert answer.value < threshold <= failed.value <= answer.value * 1.011


def test_what_is_not_monotone_is_called_so_and_the_answer_is_safe() -> None:
    axis = Capacity.__new__(Capacity)
    axis.base, axis.precision, axis.start, axis._size = Settings(), 0.0, 1, 16
    points = [point(value, met) for value, met in ((1, False), (2, True), (3, False), (4, True), (5, True))]
    failed, answer = bracket(axis, points)
    assert failed is not None
    assert answer is not None
    assert (failed.value, answer.value) == (3, 4)
    assert not monotone(axis, points)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_least_memory_is_confirmed_by_the_replays_beside_it(trace: Trace, engine: str) -> None:
    settings = load_settings(None, [f"engine={engine}", "allocator.block_size=16"])
    found = plan(trace, ["ttft_s.p99<0.2"], settings, precision=0.05)
    assert found["met"]
    assert found["monotone"]
    capacities = []
    for side, met in (("above", True), ("below", False)):
        value = found[side]["value"]
        capacities.append(value)
        again = load_settings(
            None, [f"engine={engine}", "allocator.block_size=16", f"allocator.capacity_tokens={16 * value}"]
        )
        summary = replay(trace, again)
        assert summary["ttft_s"]["p99"] == found[side]["figures"]["ttft_s.p99<0.2"]
        assert (summary["ttft_s"]["p99"] < 0.2) == met
    assert capacities[0] - capacities[1] <= 0.05 * capacities[0] + 1
    assert found["answer"]["capacity_tokens"] == 16 * capacities[0]
    assert found["binding"] == "ttft_s.p99<0.2"
    assert found["why"] in ("queueing", "prefill", "preemption")


def test_two_replays_at_a_time_find_as_good_an_answer(trace: Trace) -> None:
    one, two = (plan(trace, ["ttft_s.p99<0.2"], precision=0.05, jobs=jobs) for jobs in (1, 2))
    assert two["met"]
    assert two["answer"]["num_blocks"] == pytest.approx(one["answer"]["num_blocks"], rel=0.06)


def test_what_no_memory_can_do_is_said_with_the_nearest(trace: Trace) -> None:
    found = plan(trace, ["ttft_s.p50<0.001"])
    assert not found["met"]
    assert found["answer"] is None
    assert found["nearest"]["num_blocks"] > 0
    assert found["why"] == "prefill"
    assert "Nothing in range meets" in found["sentences"][0]


def test_the_highest_load_is_between_two_replays(trace: Trace) -> None:
    found = plan(trace, ["ttft_s.p99<0.2"], vary="arrivals.scale", precision=0.05)
    assert found["met"]
    assert found["above"]["value"] < found["below"]["value"] < found["above"]["value"] * 1.06


def test_the_first_value_that_will_do_is_the_answer(trace: Trace) -> None:
    found = plan(trace, ["ttft_s.p99<0.2"], vary="allocator.capacity_tokens", values=[4000, 16000, 32000])
    assert found["answer"] == {"allocator.capacity_tokens": 16000}
    assert [p["value"] for p in found["points"]] == [4000, 16000]


def test_goodput_counts_requests_within_all_bounds(trace: Trace) -> None:
    found = plan(trace, ["ttft_s.max<1000", "tpot_s.max<1000"], vary="seed", values=[0])
    only = found["points"][0]
    assert only["goodput_rps"] == pytest.approx(len(trace) / only["simulated_s"])


def test_json_has_what_is_promised_and_files_are_written(tmp_path: Path) -> None:
    done = kvreplay(
        "plan", "sample", "--limit", 300, "--slo", "ttft_s.p95<0.5", "--precision", "0.1", "--json", "--out", tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"met", "answer", "binding", "points"} <= set(found)
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "plan.csv", "plan.png", "plan.svg"}


@pytest.mark.parametrize("text", ["ttft<2", "ttft_s.p98<2", "ttft_s.p99>2", "ttft_s.p99<0", "ttft_s.p99<1.2.3", ""])
def test_what_is_no_objective_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"--slo .*expected"):
        read_slo(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slo", "ttft_s.p99<2", "--vary", "scheduler.max_num_seqs"], "with values"),
        (["--slo", "ttft_s.p99<2", "--vary", "scheduler.max_num_seq=1,2"], "did you mean scheduler.max_num_seqs"),
        (["--slo", "ttft_s.p99<2", "--precision", "2"], "--precision 2.0"),
        ([], "--slo"),
    ],
)
def test_wrong_options_are_one_line(options: list[str], words: str) -> None:
    done = kvreplay("plan", "sample", "--limit", 5, *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr
