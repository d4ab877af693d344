"""Either allocator under either scheduler: no recording says what comes out, but much is known of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvreplay.allocators.contiguous import ContiguousPool
from kvreplay.allocators.radix_tree import Node
from kvreplay.experiments.config import load_settings, to_yaml
from kvreplay.experiments.replay import replay
from kvreplay.experiments.table import summary_table
from kvreplay.sim.layout import LayoutLog
from kvreplay.sim.settings import SchedulerSettings, Settings, SglangSettings
from kvreplay.sim.simulation import Result, Simulation
from kvreplay.sim.summary import summarize
from kvreplay.traces import InputError, Trace, load_trace
from kvreplay.traces.blocks import BlockNodes
from scenarios import Line, Scenario, scenarios
from token_traces import trace_of_tokens

CROSSINGS = (
    ("vllm", "token_slots", 1),
    ("vllm", "paged_slots", 16),
    ("sglang", "block_pool", 1),
    ("sglang", "block_pool", 16),
)
CONTIGUOUS = (("vllm", "contiguous", 1), ("vllm", "contiguous", 16))
CACHING = pytest.mark.parametrize(("engine", "kind", "size"), CROSSINGS)
CROSSED = pytest.mark.parametrize(("engine", "kind", "size"), CROSSINGS + CONTIGUOUS)
MOST_LINES = 3000
"""SGLang may retract for ever where memory is scarce."""


class EnoughError(Exception):
    """The run was long enough."""


@dataclass
class Run:
    """A run, and what it left."""

    lines: list[Line]
    result: Result | None
    """None where it was cut short."""
    simulation: Simulation


def settings_of(engine: str, kind: str, size: int, *more: str) -> Settings:
    sets = (f"engine={engine}", f"allocator.kind={kind}", f"allocator.block_size={size}", *more)
    return load_settings(None, sets)


def run(trace: Trace, settings: Settings, tokens: int, told: list[int] | None = None) -> Run:
    """Run with a capacity of so many tokens."""
    blocks = tokens // settings.allocator.block_size
    capacity = blocks + 1 if settings.engine == "vllm" else blocks * settings.allocator.block_size
    simulation = Simulation(trace, settings, capacity, told)
    lines: list[Line] = []

    def write(line: Line) -> None:
        lines.append(line)
        if len(lines) >= MOST_LINES:
            raise EnoughError

    simulation.engine.listeners.append(LayoutLog(write))
    try:
        return Run(lines, simulation.run(), simulation)
    except EnoughError:
        return Run(lines, None, simulation)


def assert_everything_given_back(made: Run) -> None:
    """Every block or page is in exactly one place: free, or in the tree, where nobody locks it."""
    setup: Any = made.simulation.setup
    assert made.result is not None
    places = Counter(made.result.free_order.tolist())
    tree = getattr(setup, "tree", None)
    if tree is not None:
        nodes: list[Node] = list(tree.root.children.values())
        for node in nodes:
            assert not node.locks
            places.update(node.pages.tolist())
            nodes.extend(node.children.values())
        assert sum(len(node.pages) for node in nodes) == tree.evictable
    assert places == Counter(range(1, setup.capacity + 1))
    if hasattr(setup, "blocks"):
        setup.blocks.check([])
    if hasattr(setup, "pieces"):
        setup.pieces.check()
    scheduler: Any = made.simulation.scheduler
    assert scheduler.state()[1:] == (0, 0, 0)


def assert_same_records(one: Result, other: Result) -> None:
    for name in ("first_scheduled_ns", "first_token_ns", "finished_ns", "cached_first", "preemptions", "tail_waste"):
        assert one.records[name].tolist() == other.records[name].tolist(), name
    assert one.free_order.tolist() == other.free_order.tolist()
    assert one.evicted_blocks == other.evicted_blocks
    meters = [
        {key: value for key, value in vars(result.meter).items() if type(value) is int} for result in (one, other)
    ]
    assert meters[0] == meters[1]


def most_hits(trace: Trace, size: int) -> list[int]:
    """Tokens of each prompt that any earlier request computes, in whole blocks: what a cache might hold."""
    nodes = BlockNodes(trace, size)
    seen: set[int] = set()
    hits: list[int] = []
    for row, (prompt, output) in enumerate(
        zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    ):
        mine = nodes.of(row).tolist()
        limit = min((prompt - 1) // size, len(mine))
        known = next((place for place in range(limit) if mine[place] not in seen), limit)
        hits.append(known * size)
        # Nobody computes the last token that it generates.
        seen.update(mine[: (prompt + output - 1) // size])
    return hits


# ---------------------------------------------------------------------- the sample


@pytest.fixture(scope="module")
def sample() -> Trace:
    return load_trace("sample", limit=250)


@CROSSED
def test_the_sample_runs_to_its_end(sample: Trace, engine: str, kind: str, size: int) -> None:
    settings = settings_of(engine, kind, size)
    made = run_whole(sample, settings, 6000)
    assert made.result is not None
    assert (made.result.records["finished_ns"] > 0).all()
    assert_everything_given_back(made)


@CACHING
def test_no_more_is_found_than_was_ever_computed(sample: Trace, engine: str, kind: str, size: int) -> None:
    made = run_whole(sample, settings_of(engine, kind, size), 6000)
    assert made.result is not None
    assert made.result.evicted_blocks > 0
    hits = made.result.records["cached_first"]
    assert hits.sum() > 0
    assert (hits <= most_hits(sample, size)).all()


def run_whole(trace: Trace, settings: Settings, tokens: int) -> Run:
    """A run without a log."""
    blocks = tokens // settings.allocator.block_size
    capacity = blocks + 1 if settings.engine == "vllm" else blocks * settings.allocator.block_size
    simulation = Simulation(trace, settings, capacity)
    return Run([], simulation.run(), simulation)


@CROSSED
def test_fast_forward_changes_nothing_on_the_sample(sample: Trace, engine: str, kind: str, size: int) -> None:
    results = [
        run_whole(sample, settings_of(engine, kind, size, f"sim.fast_forward={on}"), 6000).result
        for on in ("true", "false")
    ]
    assert results[0] is not None
    assert results[1] is not None
    assert_same_records(results[0], results[1])


@CACHING
def test_a_cache_that_holds_all_finds_all(sample: Trace, engine: str, kind: str, size: int) -> None:
    """With requests one after the other, and nothing evicted, hits are all that there could be."""
    apart = replace(sample, arrival_ns=np.arange(len(sample)) * 10**12)
    made = run_whole(apart, settings_of(engine, kind, size), 4_000_000)
    assert made.result is not None
    assert made.result.records["cached_first"].tolist() == most_hits(sample, size)
    assert made.result.evicted_blocks == 0


# ---------------------------------------------------------------------- what the allocator may not change


UNCACHED = {"vllm": "allocator.prefix_caching=false", "sglang": "scheduler.disable_radix_cache=true"}


@pytest.mark.parametrize(
    ("engine", "kind"), [("vllm", "paged_slots"), ("vllm", "contiguous"), ("sglang", "paged_slots")]
)
def test_with_memory_to_spare_and_no_cache_the_schedule_is_the_scheduler_s_alone(
    sample: Trace, engine: str, kind: str
) -> None:
    blocks, others = (
        run(sample, settings_of(engine, one, 16, UNCACHED[engine]), 4_000_000) for one in ("block_pool", kind)
    )
    keys = ("step", "time_ns", "duration_ns", "preempted", "finished", "evicted")
    for line, other in zip(blocks.lines, others.lines, strict=True):
        assert {key: line[key] for key in keys} == {key: other[key] for key in keys}
        assert [entry[:3] for entry in line["scheduled"]] == [entry[:3] for entry in other["scheduled"]]


# ---------------------------------------------------------------------- one region a request

REGION_NS = 10**9


def regions_trace(*requests: tuple[float, int, int]) -> Trace:
    """Requests that come at so many seconds, with prompts and answers of so many tokens."""
    arrivals = [int(second * REGION_NS) for second, _, _ in requests]
    prompts = [[("prompt", row)] * prompt for row, (_, prompt, _) in enumerate(requests)]
    answers = [[("answer", row)] * output for row, (_, _, output) in enumerate(requests)]
    return trace_of_tokens(arrivals, prompts, answers)


def test_what_is_free_in_two_pieces_does_not_do_for_one_request() -> None:
    # Ten blocks of one token: regions of 3, 4 and 3; the outer ones end first and leave 6 blocks in pieces of 3.
    trace = regions_trace((0, 2, 1), (0, 2, 2), (0, 2, 1), (0.001, 3, 1))
    settings = settings_of("vllm", "contiguous", 1, "scheduler.async_scheduling=false")
    made = run(trace, settings, 10)
    assert made.result is not None
    rows = [[entry[0] for entry in line["scheduled"]] for line in made.lines]
    assert rows == [[0, 1, 2], [1], [3]]
    assert made.lines[0]["scheduled"][1][3] == [4, 5, 6, 7]
    assert made.lines[1]["free"] == 6
    summary = summarize(made.result, trace.prompt_tokens)
    assert summary["contiguous"]["kept_waiting"] == 1


@pytest.mark.parametrize("size", [1, 16])
def test_a_region_holds_the_prompt_and_all_that_may_come(sample: Trace, size: int) -> None:
    more = ("requests.max_new_tokens=700", "scheduler.async_scheduling=false")
    made = run(sample, settings_of("vllm", "contiguous", size, *more), 8000)
    reserved = -(-(sample.prompt_tokens + 700) // size)
    running: dict[int, list[int]] = {}
    for line in made.lines:
        assert not line["preempted"]
        for row, _, _, ids in line["scheduled"]:
            if row in running:
                assert not ids
            else:
                running[row] = ids
                assert ids == list(range(ids[0], ids[0] + int(reserved[row])))
        held = Counter(block for region in running.values() for block in region)
        assert set(held.values()) <= {1}
        assert line["free"] == 8000 // size - len(held)
        for row in line["finished"]:
            del running[row]


# ---------------------------------------------------------------------- random traffic


@st.composite
def sglang_settings(draw: st.DrawFn) -> SglangSettings:
    """SGLang's options, such that something runs short now and then."""
    return SglangSettings(
        chunked_prefill_size=draw(st.sampled_from([16, 48, 8192, -1])),
        max_prefill_tokens=draw(st.sampled_from([32, 16384])),
        schedule_policy=draw(st.sampled_from(["fcfs", "lpm"])),
        schedule_conservativeness=draw(st.sampled_from([0.0, 0.3, 1.0])),
        disable_overlap_schedule=draw(st.booleans()),
        enable_mixed_chunk=draw(st.booleans()),
        max_running_requests=draw(st.sampled_from([2, None])),
        disable_radix_cache=draw(st.sampled_from([False, False, False, True])),
    )


def both_ways(scenario: Scenario, settings: Settings, spare_blocks: int) -> None:
    """Run with and without fast forward, and look at both."""
    size, trace = settings.allocator.block_size, scenario.trace()
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    tokens = (-(-longest // size) + 2 + spare_blocks) * size
    runs = [
        run(trace, replace(settings, sim=replace(settings.sim, fast_forward=on)), tokens, scenario.told)
        for on in (True, False)
    ]
    lines = [made.lines[: MOST_LINES - 1] for made in runs]
    # Cut short, one of them may have been in the middle of many steps.
    shortest = min(map(len, lines))
    assert lines[0][:shortest] == lines[1][:shortest]
    one, other = runs[0].result, runs[1].result
    if one is not None and other is not None:
        assert len(lines[0]) == len(lines[1])
        assert_same_records(one, other)
        assert_everything_given_back(runs[0])
        policy = getattr(settings.scheduler, "policy", None) or getattr(settings.scheduler, "schedule_policy", None)
        if policy == "fcfs":
            assert (one.records["cached_first"] <= most_hits(trace, size)).all()


@given(data=st.data())
@pytest.mark.parametrize("size", [1, 4, 16])
def test_blocks_under_sglang_on_random_traffic(size: int, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(block_sizes=[size]))
    settings = settings_of("sglang", "block_pool", size)
    settings = replace(settings, scheduler=data.draw(sglang_settings()))
    both_ways(scenario, settings, data.draw(st.sampled_from([1, 3, 10, 100])))


@given(data=st.data())
@pytest.mark.parametrize(("kind", "size"), [("token_slots", 1), ("paged_slots", 4), ("paged_slots", 16)])
def test_pages_under_vllm_on_random_traffic(kind: str, size: int, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(block_sizes=[size]))
    settings = settings_of("vllm", kind, size, f"allocator.prefix_caching={str(scenario.prefix_caching).lower()}")
    settings = replace(settings, scheduler=SchedulerSettings(**scenario.scheduler))
    both_ways(scenario, settings, data.draw(st.sampled_from([-2, -1, 1, 3, 10, 100])))


@given(data=st.data())
@pytest.mark.parametrize("size", [1, 4, 16])
def test_regions_on_random_traffic(size: int, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(block_sizes=[size]))
    settings = settings_of("vllm", "contiguous", size)
    settings = replace(settings, scheduler=SchedulerSettings(**scenario.scheduler))
    both_ways(scenario, settings, data.draw(st.sampled_from([-2, -1, 1, 3, 10, 100])))


@given(data=st.data())
def test_a_pool_in_pieces_is_what_a_list_of_blocks_says(data: st.DataObject) -> None:
    pool, taken = ContiguousPool(25, 16), [True] + [False] * 24
    regions: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        count = data.draw(st.integers(1, 8))
        fitting = [start for start in range(1, 26 - count) if not any(taken[start : start + count])]
        assert bool(fitting) == (count <= pool.largest)
        if fitting and data.draw(st.booleans()):
            regions.append((pool.reserve(count), count))
            assert regions[-1][0] == fitting[0]
            taken[fitting[0] : fitting[0] + count] = [True] * count
        elif regions:
            start, count = regions.pop(data.draw(st.integers(0, len(regions) - 1)))
            pool.give_back(start, count)
            taken[start : start + count] = [False] * count
        pool.check()
        assert pool.free_order().tolist() == [block for block in range(25) if not taken[block]]


# ---------------------------------------------------------------------- configuration and summary


@CROSSED
def test_a_crossed_run_says_so(sample: Trace, engine: str, kind: str, size: int) -> None:
    summary = replay(sample, settings_of(engine, kind, size, "allocator.capacity_tokens=8000"))
    assert summary["exact"] is False
    assert summary["allocator"] == kind
    assert "no engine's exact behaviour" in summary["note"]
    assert summary["note"] in summary_table(summary)
    assert ("contiguous" in summary) == (kind == "contiguous")


@CROSSED
def test_the_configuration_of_a_crossed_run_reads_back(engine: str, kind: str, size: int, tmp_path: Path) -> None:
    settings = settings_of(engine, kind, size, "allocator.capacity_tokens=8000")
    (tmp_path / "c.yaml").write_text(to_yaml(settings))
    assert load_settings(str(tmp_path / "c.yaml"), []) == settings


def test_regions_are_vllm_s_scheduler_s_alone() -> None:
    with pytest.raises(InputError, match="contiguous goes with engine vllm"):
        settings_of("sglang", "contiguous", 16)


def test_an_engine_as_it_ships_says_nothing_of_the_kind(sample: Trace) -> None:
    summary = replay(sample, settings_of("sglang", "paged_slots", 16, "allocator.capacity_tokens=8000"))
    assert "exact" not in summary
    assert "note" not in summary


def test_a_kind_has_a_block_size_of_its_own() -> None:
    pool = load_settings(None, ["engine=sglang", "allocator.kind=block_pool", "allocator.num_blocks=101"])
    assert (pool.allocator.block_size, pool.allocator.num_slots) == (16, 1600)


@pytest.mark.parametrize(("kind", "size"), [("token_slots", 16), ("paged_slots", 1)])
def test_slots_are_single_and_pages_are_not(kind: str, size: int) -> None:
    with pytest.raises(InputError, match=r"allocator\.kind"):
        settings_of("sglang", kind, size)
