"""The naive re-implementation against recordings of the real engine's scheduler: every number equal."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from naive_vllm import NaiveRequest, replay
from recording_format import Recording, compare, load_recording

SHARED = Path(__file__).parents[2] / "shared"
REFERENCE = SHARED / "oracle" / "vllm"
OWN = Path(__file__).parent / "recordings"

MOONCAKE_BLOCK = 512
"""Tokens that a hash id of the Mooncake format stands for."""


def carried_requests(recording: Recording) -> list[NaiveRequest]:
    """The requests inside one of the project's own recordings."""
    trace = recording.requests
    assert trace is not None
    return [
        NaiveRequest(
            arrival_ns=int(trace.arrival_ns[row]),
            prompt=trace.prompt(row),
            output=trace.output(row),
            priority=int(trace.priority[row]),
            max_tokens=int(trace.max_tokens[row]),
        )
        for row in range(len(trace))
    ]


def reference_requests(recording: Recording) -> list[NaiveRequest]:
    """The requests of a reference recording, from the trace file that it names."""
    assert recording.trace is not None
    trace = recording.trace
    name = Path(trace["path"]).name
    path = next(p for p in (REFERENCE / name, SHARED / "traces" / name) if p.exists())
    read = {"mooncake": mooncake_requests, "azure": azure_requests}[trace["kind"]]
    requests = list(islice(read(path), trace["n"]))
    for request in requests:
        request.arrival_ns = int(request.arrival_ns * trace["time_scale"])
    return requests


def mooncake_requests(path: Path) -> Iterator[NaiveRequest]:
    """JSON lines with a hash id for every 512 prompt tokens; a token is that id and its place."""
    blocks: dict[int, list[tuple[int, int]]] = {}
    for row, line in enumerate(path.read_text().splitlines()):
        record: dict[str, Any] = json.loads(line)
        prompt: list[tuple[int, int]] = []
        for block in record["hash_ids"]:
            if block not in blocks:
                blocks[block] = [(block, place) for place in range(MOONCAKE_BLOCK)]
            prompt.extend(blocks[block])
        del prompt[record["input_length"] :]
        output = unique_output(row, record["output_length"])
        yield NaiveRequest(record["timestamp"] * 1_000_000, prompt, output)


def azure_requests(path: Path) -> Iterator[NaiveRequest]:
    """CSV rows with token counts only; no two prompts share anything."""
    first = None
    with path.open(newline="") as file:
        for row, record in enumerate(csv.DictReader(file)):
            moment = nanoseconds(record["TIMESTAMP"])
            first = moment if first is None else first
            prompt = [("prompt", row, place) for place in range(int(record["ContextTokens"]))]
            yield NaiveRequest(moment - first, prompt, unique_output(row, int(record["GeneratedTokens"])))


def nanoseconds(timestamp: str) -> int:
    """Of a UTC time stamp with up to nine decimals, since 1970."""
    whole, decimals = timestamp.split(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000_000 + int(decimals.ljust(9, "0"))


def unique_output(row: int, length: int) -> list[tuple[str, int, int]]:
    """An answer that no prompt and no other answer contains."""
    return [("output", row, place) for place in islice(count(), length)]


def hold_against(recording: Recording, requests: list[NaiveRequest]) -> None:
    """Replay the recording's requests under its settings and compare everything."""
    result = replay(requests, **recording.settings)
    compare(recording, result.steps, result.free_order, result.requests())


QUICK = ["syn1_b300", "syn3_b250_async"]
THOROUGH = [
    "az2000_b4k_x5_t8192",
    "az2000_b1k_t8192",
    "az2000_b1k_t2048_lp",
    "mc1000_b20k_t8192",
    "mc1000_b20k_async",
]
"""Some seconds and up to 1.5 GB of memory each."""

only_thorough = pytest.mark.skipif("KVREPLAY_THOROUGH" not in os.environ, reason="KVREPLAY_THOROUGH is not set")


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference recordings are not beside this checkout")
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=only_thorough) for name in THOROUGH)])
def test_reference_recording(name: str) -> None:
    recording = load_recording(REFERENCE / name)
    hold_against(recording, reference_requests(recording))


OWN_NAMES = sorted(path.stem for path in OWN.glob("*.npz"))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_own_recordings_cover_the_settings(asynchronous: bool) -> None:
    every = [load_recording(OWN / name).settings for name in OWN_NAMES]
    ours = [settings for settings in every if settings["async_scheduling"] == asynchronous]
    used = {key: {settings[key] for settings in ours} for key in ours[0]}
    assert used["policy"] == {"fcfs", "priority"}
    assert used["prefix_caching"] == used["scheduler_reserve_full_isl"] == {False, True}
    assert {1, 16} < used["block_size"]
    for key in ("watermark", "long_prefill_token_threshold", "max_num_seqs", "max_num_batched_tokens"):
        assert len(used[key]) > 1, key


@pytest.mark.parametrize("name", OWN_NAMES)
def test_own_recording(name: str) -> None:
    recording = load_recording(OWN / name)
    hold_against(recording, carried_requests(recording))


@pytest.mark.parametrize("name", OWN_NAMES)
def test_own_recording_exercises_what_it_is_for(name: str) -> None:
    recording = load_recording(OWN / name)
    assert recording.exercises
    assert not [event for event in recording.exercises if recording.events.get(event, 0) == 0]
    assert recording.events.get("preemptions", 0) == recording.columns["preemptions"].sum()
    assert recording.events.get("evictions", 0) == recording.evicted_total


Line = dict[str, Any]


@pytest.fixture(scope="module")
def replayed() -> tuple[Recording, str, dict[str, list[int]], list[int]]:
    """A recording and an equal replay of it; the lines as JSON, parsed anew by each test to spoil them."""
    recording = load_recording(OWN / "async_eos")
    result = replay(carried_requests(recording), **recording.settings)
    return recording, json.dumps(result.steps), result.requests(), result.free_order


@pytest.mark.parametrize("field", ["time_ns", "duration_ns", "evicted", "free"])
def test_compare_names_step_and_field(replayed: Any, field: str) -> None:
    recording, lines, requests, free_order = replayed
    steps: list[Line] = json.loads(lines)
    was = steps[7][field]
    steps[7][field] = was + 1
    steps[9]["time_ns"] += 1
    with pytest.raises(AssertionError, match=f"async_eos: step 7: {field}: expected {was}, got {was + 1}"):
        compare(recording, steps, free_order, requests)


@pytest.mark.parametrize("field", ["preempted", "finished"])
def test_compare_names_lists(replayed: Any, field: str) -> None:
    recording, lines, requests, free_order = replayed
    steps: list[Line] = json.loads(lines)
    line = next(line for line in steps if line[field])
    line[field].append(99)
    with pytest.raises(AssertionError, match=f"step {line['step']}: {field}: expected .*, got .*99"):
        compare(recording, iter(steps), free_order, requests)


@pytest.mark.parametrize(("place", "name"), [(0, "request"), (1, "computed"), (2, "scheduled"), (3, "new ids")])
def test_compare_names_entry_and_field(replayed: Any, place: int, name: str) -> None:
    recording, lines, requests, free_order = replayed
    steps: list[Line] = json.loads(lines)
    line = next(line for line in steps[20:] if len(line["scheduled"]) > 2)
    entry = line["scheduled"][2]
    entry[place] = [*entry[3], 5] if place == 3 else entry[place] + 1
    with pytest.raises(AssertionError, match=f"step {line['step']}: entry 2: {name}: expected"):
        compare(recording, steps, free_order, requests)


def test_compare_names_a_missing_entry_and_a_missing_step(replayed: Any) -> None:
    recording, lines, requests, free_order = replayed
    steps: list[Line] = json.loads(lines)
    steps[20]["scheduled"].pop()
    with pytest.raises(AssertionError, match="step 20: scheduled requests: expected"):
        compare(recording, steps, free_order, requests)
    steps = json.loads(lines)[:-1]
    with pytest.raises(AssertionError, match=f"step {len(steps)}: time_ns: expected .*, got nothing"):
        compare(recording, steps, free_order, requests)


def test_compare_names_requests_and_free_queue(replayed: Any) -> None:
    recording, lines, requests, free_order = replayed
    steps: list[Line] = json.loads(lines)
    spoilt = [*requests["finished_ns"][:4], 0, *requests["finished_ns"][5:]]
    with pytest.raises(AssertionError, match=r"finished_ns of request 4: expected .*, got 0"):
        compare(recording, steps, free_order, {**requests, "finished_ns": spoilt})
    with pytest.raises(AssertionError, match=f"free queue at position {len(free_order) - 1}: .*got nothing"):
        compare(recording, steps, free_order[:-1], requests)
