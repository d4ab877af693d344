"""The hit-rate curve: against plain lists, against known values, and from outside."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvreplay.experiments.curve import curve, hit_curve
from kvreplay.experiments.curve_belady import belady_hits
from kvreplay.experiments.curve_distances import stack_distances
from kvreplay.experiments.curve_references import References, references
from kvreplay.traces import InputError, load_trace
from kvreplay.traces.describe import hit_tokens
from run_kvreplay import kvreplay

MOONCAKE = Path(__file__).parents[2] / "shared" / "traces" / "mooncake_conversation.jsonl"
NAIVE_CAPACITIES = (1, 2, 3, 5, 8, 13)


def stream_of(segments: list[int], blocks: list[int]) -> References:
    """One request's references to segments with so many blocks each."""
    counts = np.array([blocks[segment] for segment in segments], np.int64)
    asked = np.ones(len(segments), np.bool_)
    return References(np.array([0, len(segments)]), np.array(segments, np.int64), counts, asked, counts)


def naive_lru(blocks: list[Any], capacity: int) -> int:
    """Hits of a list that is kept in the order of use."""
    cache: list[Any] = []
    hits = 0
    for block in blocks:
        if block in cache:
            hits += 1
            cache.remove(block)
        cache = [block, *cache][:capacity]
    return hits


def naive_belady(blocks: list[Any], capacity: int) -> int:
    """Hits when the block used furthest in the future goes, looked up block by block."""
    cache: list[Any] = []
    hits = 0
    for place, block in enumerate(blocks):
        if block in cache:
            hits += 1
            continue
        if len(cache) == capacity:
            future = blocks[place:]
            cache.remove(max(cache, key=lambda kept: future.index(kept) if kept in future else len(blocks)))
        cache.append(block)
    return hits


streams = st.integers(1, 7).flatmap(
    lambda kinds: st.tuples(
        st.lists(st.integers(0, kinds - 1), min_size=1, max_size=50),
        st.lists(st.sampled_from([1, 1, 2, 5]), min_size=kinds, max_size=kinds),
    )
)


@given(streams)
def test_every_capacity_hits_as_a_list_in_the_order_of_use(case: tuple[list[int], list[int]]) -> None:
    segments, blocks = case
    stream = stream_of(segments, blocks)
    again, distances = stack_distances(stream.segment, stream.blocks)
    spelled = [(segment, block) for segment in segments for block in range(blocks[segment])]
    for capacity in NAIVE_CAPACITIES:
        assert stream.blocks[again][distances <= capacity].sum() == naive_lru(spelled, capacity)


@given(streams)
def test_the_optimum_is_that_of_a_look_into_the_future(case: tuple[list[int], list[int]]) -> None:
    segments, blocks = case
    spelled = [(segment, block) for segment in segments for block in range(blocks[segment])]
    for capacity in NAIVE_CAPACITIES:
        assert belady_hits(stream_of(segments, blocks), capacity).sum() == naive_belady(spelled, capacity)


@pytest.mark.parametrize("block_size", [1, 16, 64, 128])
def test_references_are_the_blocks_of_the_prompts(block_size: int) -> None:
    trace = load_trace("sample", limit=300)
    stream = references(trace, block_size)
    assert stream.asked_blocks == int((-(-trace.prompt_tokens // block_size)).sum())
    assert stream.asked_tokens == int(trace.prompt_tokens.sum())
    assert len(stream.segment) <= 3 * len(references(trace, 64).segment)


def test_small_blocks_hit_as_they_would_one_by_one() -> None:
    """Blocks of 16 in a trace of 64, named by the trace's block and the place in it."""
    trace = load_trace("sample", limit=60)
    assert trace.nodes is not None
    assert trace.node_ptr is not None
    assert trace.covered_tokens is not None
    last: dict[tuple[int, int], int] = {}
    hits = dict.fromkeys((200, 1000, 5000), 0)
    now = 0
    for row in range(len(trace)):
        nodes = trace.nodes[trace.node_ptr[row] : trace.node_ptr[row + 1]].tolist()
        for block in range(-(-int(trace.covered_tokens[row]) // 16)):
            name = (nodes[block // 4], block % 4)
            since = sum(used > last[name] for used in last.values()) + 1 if name in last else None
            last[name] = now = now + 1
            for capacity in hits:
                asked = block * 16 < trace.prompt_tokens[row]
                hits[capacity] += asked and since is not None and since <= capacity
    found = hit_curve(references(trace, 16))
    assert (found.at(list(hits))[0] * found.asked_blocks).round().astype(int).tolist() == list(hits.values())


def test_leaf_first_never_hits_a_block_without_all_before_it() -> None:
    trace = load_trace("sample", limit=400)
    stream = references(trace, 64).leaf_first()
    again, distances = stack_distances(stream.segment, stream.blocks)
    distance = np.full(len(stream.segment), np.iinfo(np.int64).max)
    distance[again] = distances
    for start, stop in zip(stream.request_ptr[:-1], stream.request_ptr[1:], strict=True):
        assert (np.diff(distance[start:stop]) <= 0).all()


def test_ceiling_of_one_token_blocks_is_what_trace_info_says() -> None:
    trace = load_trace("sample", limit=500)
    found = curve(trace, block_size=1, capacities=[1], belady=False)
    assert found["ceiling_per_token"] == pytest.approx(hit_tokens(trace).sum() / trace.prompt_tokens.sum(), abs=1e-12)


@pytest.mark.skipif(not MOONCAKE.exists(), reason="needs the Mooncake conversation trace in ../shared/traces")
def test_known_values_of_the_mooncake_conversation_trace() -> None:
    trace = load_trace(MOONCAKE)
    begun = time.process_time()
    found = hit_curve(references(trace, 512))
    rates, _ = found.at([1024, 4096, 8192, 16384, 32768, 65536, 10**9])
    assert time.process_time() - begun < 0.5
    assert [f"{rate:.6f}" for rate in rates] == [
        "0.044475",
        "0.087553",
        "0.181179",
        "0.265556",
        "0.334898",
        "0.359449",
        "0.366412",
    ]
    assert (found.asked_blocks, found.blocks[-1]) == (288_500, 105_710)


def test_optimum_lies_between_lru_and_ceiling() -> None:
    found = curve(load_trace("sample", limit=1000), block_size=64)
    for order in ("hit_rate_per_block", "leaf_first_per_block"):
        assert all(a <= b for a, b in zip(found[order], found["belady_per_block"], strict=True))
    assert max(found["belady_per_block"]) <= found["ceiling_per_block"]
    assert found["hit_rate_per_block"] == sorted(found["hit_rate_per_block"])


def test_a_trace_without_identity_hits_nothing(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    found = curve(load_trace(path))
    assert (found["references"], found["ceiling_per_block"]) == (301, 0)


def test_json_has_what_is_promised(tmp_path: Path) -> None:
    done = kvreplay(
        "curve", "sample", "--limit", 500, "--capacities", "1000,4000", "--check", 1, "--json", "--out", tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {
        "block_size",
        "references",
        "capacity_blocks",
        "hit_rate_per_block",
        "hit_rate_per_token",
        "ceiling_per_block",
        "ceiling_per_token",
        "belady_per_block",
    } <= set(found)
    assert found["capacity_blocks"] == [1000, 4000]
    assert [point["capacity_blocks"] for point in found["check"]] == [4000]
    assert json.loads((tmp_path / "curve.json").read_text())["hit_rate_per_block"] == found["hit_rate_per_block"]
    assert len((tmp_path / "capacities.csv").read_text().splitlines()) == 3
    assert (tmp_path / "curve.png").exists()


def test_replay_comes_close_where_memory_is_plenty() -> None:
    done = kvreplay("curve", "sample", "--capacities", "8192", "--check", 1, "--json", "--no-belady")
    found = json.loads(done.stdout)
    assert found["check"][0]["prefix_hit_rate"] == pytest.approx(found["leaf_first_per_token"][0], abs=0.02)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--block-size", "24"], "--block-size 24"),
        (["--block-size", "0"], "at least 1"),
        (["--capacities", "a"], "--capacities a"),
        (["--capacities", "0"], "at least 1"),
        (["--check", "-1"], "--check -1"),
        (["--model", "no-such"], "--model"),
    ],
)
def test_wrong_options_are_one_line(options: list[str], words: str) -> None:
    done = kvreplay("curve", "sample", "--limit", 5, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_bad_capacity_in_python_is_an_input_error() -> None:
    with pytest.raises(InputError, match="at least 1"):
        curve(load_trace("sample", limit=5), capacities=[0])
