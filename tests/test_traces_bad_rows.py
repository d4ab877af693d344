"""A bad row stops the reading and is named, or is skipped and counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvreplay.traces import InputError, load_trace

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
WHOLE = "expected a whole number of at least 1"


def changed(**fields: object) -> str:
    return json.dumps({k: v for k, v in (GOOD | fields).items() if v is not ...})


BAD_ROWS = [
    (changed(output_length=-5), f"field 'output_length': got -5, {WHOLE}"),
    (changed(output_length=0), f"field 'output_length': got 0, {WHOLE}"),
    (changed(output_length=True), f"field 'output_length': got true, {WHOLE}"),
    (changed(output_length="5"), f"field 'output_length': got \"5\", {WHOLE}"),
    (changed(output_length=None), f"field 'output_length': got null, {WHOLE}"),
    (changed(output_length=...), f"field 'output_length': missing, {WHOLE}"),
    (changed(output_length=float("nan")), f"field 'output_length': got NaN, {WHOLE}"),
    (changed(output_length=2**40), "field 'output_length': got 1099511627776, expected less than 2**31"),
    (changed(input_length=5.5), f"field 'input_length': got 5.5, {WHOLE}"),
    (
        changed(input_length=2000),
        "field 'hash_ids': got 2 ids, expected 4 of 512 tokens each for 2000 tokens",
    ),
    (changed(hash_ids=[1]), "field 'hash_ids': got 1 ids, expected 2"),
    (changed(hash_ids=None), "field 'hash_ids': got null, expected a list of ids"),
    (changed(hash_ids=[1, "a"]), "field 'hash_ids': got \"a\", expected ids"),
    (changed(hash_ids=[1, -2]), "field 'hash_ids': got -2, expected ids"),
    (changed(hash_ids=[3, True]), "field 'hash_ids': got true, expected ids"),
    (changed(hash_ids=[1, 2.5]), "field 'hash_ids': got 2.5, expected ids"),
    (changed(timestamp=-1), "field 'timestamp': got -1, expected a number of at least 0, in ms"),
    (changed(timestamp="0"), "field 'timestamp': got \"0\", expected a number"),
    (changed(timestamp=False), "field 'timestamp': got false, expected a number"),
    (changed(timestamp=float("inf")), "field 'timestamp': got Infinity, expected a number"),
    (changed(timestamp=10**20), "field 'timestamp': got 100000000000000000000, expected a number"),
    (changed(timestamp=...), "field 'timestamp': missing, expected a number"),
    (changed(session_id=[1]), "field 'session_id': got [1], expected a whole number or a name"),
    (changed(session_id="s", delay="x"), "field 'delay': got \"x\", expected a number"),
    (changed()[:-20], "expected one whole JSON object"),
    ("[1, 2]", "got [1, 2], expected one JSON object"),
    ("nonsense", 'got "nonsense" (Expecting value), expected one whole JSON object'),
]


@pytest.mark.parametrize(("line", "message"), BAD_ROWS)
def test_json_rows(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{changed()}\n\n{line}\n{changed(timestamp=7)}\n")
    with pytest.raises(InputError) as caught:
        load_trace(path)
    text = str(caught.value)
    assert text.startswith(f"{path}:3: ")
    assert message in text
    assert "\n" not in text
    trace = load_trace(path, on_error="skip")
    assert trace.arrival_ns.tolist() == [0, 7_000_000]
    assert trace.num_nodes == 2
    assert trace.notes == (f"1 bad row was skipped, the first: {text}",)


CSV_ROWS = [
    ("2023-11-16 18:15:47,5,x", "field 'GeneratedTokens': got \"x\", expected a whole number"),
    ("2023-11-16 18:15:47,0,5", "field 'ContextTokens': got 0, expected a whole number of at least 1"),
    ("2023-11-16 18:15:47,,5", "field 'ContextTokens': missing, expected a whole number"),
    ("2023-11-16 18:15:47,5.5,5", "field 'ContextTokens': got 5.5, expected a whole number"),
    ("2023-11-16 18:15:47,5", "got 2 fields, expected 3"),
    ("today,5,5", "field 'TIMESTAMP': got \"today\", expected a date and time"),
    ("2023-11-16,5,5", "field 'TIMESTAMP': got \"2023-11-16\", expected a date and time"),
    ("2023-13-16 18:15:47,5,5", "field 'TIMESTAMP': got \"2023-13-16 18:15:47\", expected a date and time"),
    ("NaT,5,5", "field 'TIMESTAMP': got \"NaT\", expected a date and time"),
]


@pytest.mark.parametrize(("line", "message"), CSV_ROWS)
def test_csv_rows(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    good = "2023-11-16 18:15:46.6805900,374,44"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{good}\n{line}\n{good}\n")
    with pytest.raises(InputError) as caught:
        load_trace(path)
    text = str(caught.value)
    assert text.startswith(f"{path}:3: ")
    assert message in text
    assert len(load_trace(path, on_error="skip")) == 2


def test_token_rows(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for row, message in (
        ({"prompt_token_ids": []}, "field 'prompt_token_ids': got [], expected at least one token id"),
        ({"prompt_token_ids": [1], "output_token_ids": []}, "field 'output_token_ids': got []"),
        ({"prompt_token_ids": [1]}, "field 'output_length': missing"),
        ({"prompt_token_ids": [1, None], "output_length": 1}, "field 'prompt_token_ids': got null"),
    ):
        path.write_text(json.dumps({"timestamp": 0} | row))
        with pytest.raises(InputError, match=r"trace.jsonl:1: ") as caught:
            load_trace(path)
        assert message in str(caught.value)


def test_nothing_left(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(changed(output_length=0))
    with pytest.raises(InputError, match=r"no requests in it.*1 bad row skipped"):
        load_trace(path, on_error="skip")


def test_wrong_options(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:47,5,5\n")
    for options, message in (
        ({"format": "moooncake"}, "no such format, known are"),
        ({"time_unit": "h"}, "no such unit, known are s, ms"),
        ({"id_tokens": 16}, "no block ids"),
        ({"id_tokens": 0}, "at least 1"),
        ({"limit": 0}, "at least 1"),
        ({"on_error": "ignore"}, "expected stop or skip"),
        ({"format": "burstgpt"}, "no column 'Timestamp'"),
        ({"format": "mooncake"}, "expected one whole JSON object"),
    ):
        with pytest.raises(InputError, match=message):
            load_trace(path, **options)  # pyright: ignore[reportArgumentType]
