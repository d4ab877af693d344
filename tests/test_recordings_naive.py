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

only_thorough = pytest.mark.skipif(
    "KVREPLAY_THOROUGH" not in os.environ, reason="KVREPLAY_THOROUGH is not set"
)


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference recordings are not beside this checkout")
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=only_thorough) for name in THOROUGH)])
def test_reference_recording(name: str) -> None:
    recording = load_recording(REFERENCE / name)
    hold_against(recording, reference_requests(recording))
