"""Prefix nodes against what they mean: requests share as many tokens as their nodes say."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kvreplay.traces import Trace, load_trace
from kvreplay.traces.describe import describe, hit_tokens
from kvreplay.traces.hashing import in_blocks
from kvreplay.traces.prefix import intern_blocks, intern_sequences, number_by_first_appearance
from kvreplay.traces.ragged import pointers
from kvreplay.traces.turns import cover_answers, parents_by_name, parents_in_sessions, sessions_of

sequences = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=12)


def intern_naively(rows: list[list[int]]) -> list[int]:
    """Nodes by a dictionary of (node before, id)."""
    known: dict[tuple[int, int], int] = {}
    nodes: list[int] = []
    for row in rows:
        node = -1
        for item in row:
            node = known.setdefault((node, item), len(known))
            nodes.append(node)
    return nodes


def flat(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    items = np.array([item for row in rows for item in row], dtype=np.int64)
    return items, pointers(np.array([len(row) for row in rows]))


@given(sequences)
def test_interning(rows: list[list[int]]) -> None:
    ids, ptr = flat(rows)
    assert intern_blocks(ids, ptr).tolist() == intern_naively(rows)
    assert intern_sequences(ids, ptr).tolist() == intern_naively(rows)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5)))
def test_numbers_by_first_appearance(values: list[int]) -> None:
    numbers, first = number_by_first_appearance(np.array(values, dtype=np.int64))
    known = list(dict.fromkeys(values))
    assert numbers.tolist() == [known.index(value) for value in values]
    assert first.tolist() == [values.index(value) for value in known]


def test_ids_that_name_prefixes_are_only_renumbered() -> None:
    ids, ptr = flat([[70, 9], [70, 9, 4], [3]])
    assert intern_blocks(ids, ptr).tolist() == [0, 1, 0, 1, 2, 3]


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=12))
def test_parents_and_sessions(session: list[int]) -> None:
    parent = parents_in_sessions(np.array(session, dtype=np.int32))
    last: dict[int, int] = {}
    for row, name in enumerate(session):
        assert parent[row] == (last.get(name, -1) if name >= 0 else -1)
        last[name] = row
    roots = sessions_of(parent)
    for before, after in pairwise(np.flatnonzero(np.array(session) == 1).tolist()):
        assert roots[before] == roots[after]


def test_parents_by_name_ignore_unknown_and_later_rows() -> None:
    own, parent = np.array([0, 1, 2, -1], np.int32), np.array([2, 0, -1, 5], np.int32)
    assert parents_by_name(own, parent).tolist() == [-1, 0, -1, -1]


def chat(tmp_path: Path, turns: list[tuple[str, int, list[int]]], size: int = 4) -> Trace:
    """A Mooncake trace of (session, prompt tokens, ids); every answer has 3 tokens."""
    lines = [
        json.dumps({"session_id": s, "timestamp": i, "input_length": n, "output_length": 3, "hash_ids": ids})
        for i, (s, n, ids) in enumerate(turns)
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(lines))
    return load_trace(path, id_tokens=size)


def nodes_of(trace: Trace, row: int) -> list[int]:
    assert trace.nodes is not None
    assert trace.node_ptr is not None
    return trace.nodes[trace.node_ptr[row] : trace.node_ptr[row + 1]].tolist()


def covered(trace: Trace) -> list[int]:
    assert trace.covered_tokens is not None
    return trace.covered_tokens.tolist()


def test_answers_take_the_next_turns_blocks(tmp_path: Path) -> None:
    trace = chat(tmp_path, [("s", 6, [1, 2]), ("s", 14, [1, 3, 4, 5])])
    assert nodes_of(trace, 0) == nodes_of(trace, 1)[:3]
    assert covered(trace) == [9, 14]
    assert trace.num_nodes == 4


def test_answers_are_covered_only_as_far_as_the_next_prompt_goes(tmp_path: Path) -> None:
    trace = chat(tmp_path, [("s", 6, [1, 2]), ("s", 8, [1, 3])])
    assert covered(trace) == [8, 8]
    assert nodes_of(trace, 0) == nodes_of(trace, 1)


def test_other_prompts_cover_nothing(tmp_path: Path) -> None:
    trace = chat(tmp_path, [("s", 6, [1, 2]), ("s", 14, [9, 3, 4, 5]), ("t", 6, [1, 6]), ("t", 5, [1, 7])])
    assert covered(trace) == [6, 14, 6, 5]


def test_chains_end_in_the_last_turns_nodes(tmp_path: Path) -> None:
    turns = [("s", 5, [1, 2]), ("s", 6, [1, 3]), ("s", 7, [1, 4]), ("s", 12, [1, 5, 6])]
    trace = chat(tmp_path, turns)
    assert covered(trace) == [6, 7, 10, 12]
    assert nodes_of(trace, 0) == nodes_of(trace, 1) == nodes_of(trace, 3)[:2]
    assert trace.num_nodes == 3


def test_the_first_fitting_follower_wins() -> None:
    nodes, ptr = flat([[0, 1], [0, 2, 3], [0, 4, 5]])
    parent = np.array([-1, 0, 0], dtype=np.int32)
    prompt, output = np.array([5, 12, 12], np.int32), np.array([4, 1, 1], np.int32)
    new, new_ptr, reach = cover_answers(nodes.astype(np.int32), ptr, prompt, parent, prompt, output, 4)
    assert new[: new_ptr[1]].tolist() == new[new_ptr[1] : new_ptr[2]].tolist()
    assert reach.tolist() == [9, 12, 12]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.lists(st.integers(0, 2), min_size=1)),
        min_size=1,
        max_size=8,
    )
)
def test_token_ids_share_what_they_share(tmp_path_factory, requests) -> None:
    path = tmp_path_factory.getbasetemp() / "tokens.jsonl"
    rows = [{"timestamp": i, "prompt_token_ids": p, "output_token_ids": o} for i, (p, o) in enumerate(requests)]
    path.write_text("\n".join(map(json.dumps, rows)))
    trace = load_trace(path)
    known = [prompt + output for prompt, output in requests]
    assert trace.nodes is not None
    assert trace.nodes.tolist() == intern_naively(known)
    assert covered(trace) == [len(tokens) for tokens in known]
    expected = [
        max((common(prompt, earlier) for earlier in known[:i]), default=0) for i, (prompt, _) in enumerate(requests)
    ]
    assert hit_tokens(trace).tolist() == expected
    blocks = in_blocks(trace, 2)
    for i, a in enumerate(known):
        for j, b in enumerate(known):
            shared = common(nodes_of(blocks, i), nodes_of(blocks, j))
            assert min(2 * shared, len(a)) == (len(a) if a == b else common(a, b) // 2 * 2)


def common(a: list[int], b: list[int]) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_partial_last_blocks_are_hit_as_far_as_both_go(tmp_path: Path) -> None:
    trace = chat(tmp_path, [("a", 6, [1, 2]), ("b", 7, [1, 2]), ("c", 5, [1, 2]), ("d", 8, [1, 2])])
    assert hit_tokens(trace).tolist() == [0, 6, 5, 7]
    found = describe(trace)
    assert found["infinite_cache_hit_share"] == 18 / 26
    assert found["distinct_prefixes"] == 2


def test_every_row_has_the_nodes_that_cover_it() -> None:
    trace = load_trace("sample")
    assert trace.node_ptr is not None
    assert trace.nodes is not None
    counts = -(-np.array(covered(trace)) // trace.granularity)
    assert np.array_equal(np.diff(trace.node_ptr), counts)
    assert np.array_equal(np.unique(trace.nodes), np.arange(trace.num_nodes))
    before: dict[int, set[int]] = defaultdict(set)
    for row in range(len(trace)):
        nodes = nodes_of(trace, row)
        for parent, node in pairwise([-1, *nodes]):
            before[node].add(parent)
    assert all(len(parents) == 1 for parents in before.values())
