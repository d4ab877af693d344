"""The naive re-implementation of SGLang against recordings of its own scheduler: every number equal."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from naive_sglang import NaiveRequest, NaiveResult, replay
from naive_sglang_tree import EVICTION_ORDERS
from sglang_recording_format import PER_STEP, Recording, compare, load_recording

SHARED = Path(__file__).parents[2] / "shared"
REFERENCE = SHARED / "oracle" / "sglang"
OWN = Path(__file__).parent / "sglang_recordings"

MOONCAKE_BLOCK = 512
"""Tokens that a hash id of the Mooncake format stands for."""
ANSWERS = 1 << 40
"""Token ids from here on are answers: the token at position `p` of request `i` is `ANSWERS + (i << 20) + p`."""
UNIQUE_PROMPTS = 1 << 50


def carried_requests(recording: Recording) -> list[NaiveRequest]:
    """The requests inside one of the project's own recordings."""
    trace = recording.requests
    assert trace is not None
    return [
        NaiveRequest(
            arrival_ns=int(trace.arrival_ns[row]),
            prompt=trace.prompt(row),
            output=trace.output(row),
            max_new_tokens=int(trace.max_new_tokens[row]),
        )
        for row in range(len(trace))
    ]


def reference_requests(recording: Recording) -> list[NaiveRequest]:
    """The requests of a reference recording, from the trace that it names."""
    assert recording.trace is not None
    kind, n = recording.trace["kind"], recording.trace["n"]
    if kind == "mooncake":
        requests = list(islice(mooncake_requests(SHARED / "traces" / "mooncake_conversation.jsonl"), n))
    elif kind == "azure":
        requests = list(islice(azure_requests(SHARED / "traces" / "azure_2023_conv.csv"), n))
    else:
        requests = list(turns(REFERENCE / f"mt{n}.jsonl.gz"))
    for request in requests:
        request.max_new_tokens = recording.trace["max_new_tokens"]
    return requests


def answer(row: int, prompt_length: int, length: int) -> list[int]:
    """What the recorder's stand-in for the model generates."""
    first = ANSWERS + (row << 20) + prompt_length
    return list(range(first, first + max(1, length)))


def mooncake_requests(path: Path) -> Iterator[NaiveRequest]:
    """JSON lines with a hash id for every 512 prompt tokens."""
    for row, line in enumerate(path.read_text().splitlines()):
        record = json.loads(line)
        prompt = [block * MOONCAKE_BLOCK + place for block in record["hash_ids"] for place in range(MOONCAKE_BLOCK)]
        del prompt[record["input_length"] :]
        output = answer(row, len(prompt), record["output_length"])
        yield NaiveRequest(record["timestamp"] * 1_000_000, prompt, output)


def azure_requests(path: Path) -> Iterator[NaiveRequest]:
    """CSV rows with token counts only; no two prompts share anything. Times are cut to microseconds."""
    first = None
    with path.open(newline="") as file:
        for row, record in enumerate(csv.DictReader(file)):
            moment = microseconds(record["TIMESTAMP"])
            first = moment if first is None else first
            start = UNIQUE_PROMPTS + (row << 20)
            prompt = list(range(start, start + max(1, int(record["ContextTokens"]))))
            output = answer(row, len(prompt), int(record["GeneratedTokens"]))
            yield NaiveRequest((moment - first) * 1000, prompt, output)


def microseconds(timestamp: str) -> int:
    """Of a UTC time stamp with up to seven decimals, since 1970."""
    whole, decimals = timestamp.split(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000 + int(decimals[:6].ljust(6, "0"))


def turns(path: Path) -> Iterator[NaiveRequest]:
    """JSON lines with token ids; a turn's prompt contains the answers before it."""
    with gzip.open(path, "rt") as file:
        for line in file:
            record = json.loads(line)
            yield NaiveRequest(round(record["timestamp"] * 1e9), record["prompt_token_ids"], record["output_token_ids"])


def hold_against(recording: Recording, requests: list[NaiveRequest]) -> None:
    """Replay the recording's requests under its settings and compare everything."""
    result = replay(requests, **recording.settings)
    compare(recording, result.steps, result.free_order, result.requests(), result.row_order)


QUICK = ["mt_retr_ps1", "mt_noovl"]
THOROUGH = ["mt600_20k", "az600_16k_eos", "az2000_64k_ps64", "mc1000_320k_ps16", "mc1000_960k_ps1"]

only_thorough = pytest.mark.skipif("KVREPLAY_THOROUGH" not in os.environ, reason="KVREPLAY_THOROUGH is not set")


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference recordings are not beside this checkout")
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=only_thorough) for name in THOROUGH)])
def test_reference_recording(name: str) -> None:
    recording = load_recording(REFERENCE / name)
    hold_against(recording, reference_requests(recording))


OWN_NAMES = sorted(path.stem for path in OWN.glob("*.npz"))


@pytest.mark.parametrize("serial", [False, True])
def test_own_recordings_cover_the_settings(serial: bool) -> None:
    every = [load_recording(OWN / name).settings for name in OWN_NAMES]
    ours = [settings for settings in every if settings["disable_overlap_schedule"] == serial]
    used = {key: {settings[key] for settings in ours} for key in ours[0]}
    assert used["schedule_policy"] == {"fcfs", "lpm"}
    assert used["disable_radix_cache"] == used["enable_mixed_chunk"] == {False, True}
    assert {1, 16, 64} <= used["page_size"]
    for key in ("num_slots", "schedule_conservativeness", "clip_max_new_tokens_estimation"):
        assert len(used[key]) > 1, key
    if not serial:
        assert used["radix_eviction_policy"] == EVICTION_ORDERS.keys()
        for key in ("max_running_requests", "chunked_prefill_size", "max_prefill_tokens", "context_length"):
            assert len(used[key]) > 1, key


@pytest.mark.parametrize("name", OWN_NAMES)
def test_own_recording(name: str) -> None:
    recording = load_recording(OWN / name)
    hold_against(recording, carried_requests(recording))


@pytest.mark.parametrize("name", OWN_NAMES)
def test_own_recording_exercises_what_it_is_for(name: str) -> None:
    recording = load_recording(OWN / name)
    steps, columns, events = recording.steps, recording.columns, recording.events
    assert recording.exercises
    assert not [event for event in recording.exercises if events.get(event, 0) == 0]
    assert events.get("retractions", 0) == columns["preemptions"].sum() == len(steps.preempted)
    assert events.get("evictions", 0) == steps.evicted.sum()
    assert events.get("prefix_hits", 0) == (columns["cached_first"] > 0).sum()
    assert events.get("rejected", 0) == (columns["first_scheduled_ns"] < 0).sum()


Line = dict[str, Any]


@pytest.fixture(scope="module")
def replayed() -> tuple[Recording, str, NaiveResult]:
    """A recording and an equal replay of it; the lines as JSON, parsed anew by each test to spoil them."""
    recording = load_recording(OWN / "page1_reckless")
    result = replay(carried_requests(recording), **recording.settings)
    return recording, json.dumps(result.steps), result


NUMBERS = [name for name in PER_STEP if name != "kind"]


@pytest.mark.parametrize("field", NUMBERS)
def test_compare_names_step_and_field(replayed: Any, field: str) -> None:
    recording, lines, result = replayed
    steps: list[Line] = json.loads(lines)
    was = steps[7][field]
    steps[7][field] = was + 1
    steps[9]["time_ns"] += 1
    with pytest.raises(AssertionError, match=f"page1_reckless: step 7: {field}: expected {was}, got {was + 1}"):
        compare(recording, steps, result.free_order, result.requests())


@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("kind", lambda line: line.update(kind="mixed")),
        ("preempted", lambda line: line["preempted"].append(99)),
        ("finished", lambda line: line["finished"].append(99)),
        ("evictions, slots short", lambda line: line.update(evictions=[[1, 1], *line["evictions"]])),
        ("scheduled requests", lambda line: line["scheduled"][1].__setitem__(0, 99)),
        ("computed tokens", lambda line: line["scheduled"][1].__setitem__(1, 99)),
        ("scheduled tokens", lambda line: line["scheduled"][1].__setitem__(2, 99)),
        ("rows", lambda line: line["rows"].reverse()),
        ("slots", lambda line: line["scheduled"][1][3][0].__setitem__(0, 999)),
        ("new-token ratio", lambda line: line.update(new_token_ratio=2.0)),
    ],
)
def test_compare_names_lists(replayed: Any, field: str, spoil: Callable[[Line], None]) -> None:
    recording, lines, result = replayed
    steps: list[Line] = json.loads(lines)
    line = next(line for line in steps[20:] if len(line["scheduled"]) > 2)
    spoil(line)
    with pytest.raises(AssertionError, match=f"step {line['step']}: {field}: expected"):
        compare(recording, iter(steps), result.free_order, result.requests())


def test_compare_takes_the_plain_layout_log(replayed: Any) -> None:
    recording, lines, result = replayed
    promised = ["step", "time_ns", "duration_ns", "scheduled", "preempted", "finished", "evicted", "free"]
    plain = [{key: line[key] for key in promised} for line in json.loads(lines)]
    compare(recording, [*plain, {"free_order": result.free_order}], result.free_order, {})
    plain[30]["free"] += 1
    with pytest.raises(AssertionError, match="step 30: free: expected"):
        compare(recording, plain, result.free_order, {})


def test_compare_names_a_missing_entry_and_a_missing_step(replayed: Any) -> None:
    recording, lines, result = replayed
    steps: list[Line] = json.loads(lines)
    steps[20]["scheduled"].pop()
    with pytest.raises(AssertionError, match="step 20: scheduled requests: expected"):
        compare(recording, steps, result.free_order, result.requests())
    steps = json.loads(lines)[:-1]
    with pytest.raises(AssertionError, match=f"step {len(steps)}: time_ns: expected .*, got nothing"):
        compare(recording, steps, result.free_order, result.requests())


def test_compare_names_requests_and_free_lists(replayed: Any) -> None:
    recording, lines, result = replayed
    steps: list[Line] = json.loads(lines)
    requests = result.requests()
    spoilt = {**requests, "finished_ns": [*requests["finished_ns"][:4], 0, *requests["finished_ns"][5:]]}
    with pytest.raises(AssertionError, match=r"finished_ns of request 4: expected .*, got 0"):
        compare(recording, steps, result.free_order, spoilt)
    with pytest.raises(AssertionError, match=f"free list at position {len(result.free_order) - 1}: .*nothing"):
        compare(recording, steps, result.free_order[:-1], requests)
    with pytest.raises(AssertionError, match="free rows at position 0: expected"):
        compare(recording, steps, result.free_order, requests, result.row_order[::-1])


def test_a_prompt_that_fits_by_length_only_blocks_the_queue() -> None:
    """The engine lets it in and then goes round for ever; the naive replay says so."""
    requests = [NaiveRequest(0, list(range(308)), [1]), NaiveRequest(0, [5, 6], [1])]
    with pytest.raises(RuntimeError, match="request 0 does not fit"):
        replay(requests, num_slots=320, page_size=16)
