"""The naive re-implementation of SGLang against recordings of its own scheduler: every number equal."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest
from naive_sglang import NaiveRequest, replay
from sglang_recording_format import Recording, compare, load_recording

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
