"""Every format is recognised and read exactly, from every kind of source."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from kvreplay.traces import InputError, Trace, load_trace

MOONCAKE = (
    '{"timestamp": 112, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}\n'
    '{"timestamp": 113.5, "input_length": 1024, "output_length": 1, "hash_ids": [7, 9]}\n'
)


def read(tmp_path: Path, text: str, name: str = "trace", **options: object) -> Trace:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load_trace(path, **options)  # pyright: ignore[reportArgumentType]


def rows(trace: Trace) -> list[list[int]]:
    assert trace.nodes is not None
    assert trace.node_ptr is not None
    return [trace.nodes[a:b].tolist() for a, b in zip(trace.node_ptr[:-1], trace.node_ptr[1:], strict=True)]


def test_mooncake(tmp_path: Path) -> None:
    trace = read(tmp_path, MOONCAKE)
    assert trace.arrival_ns.tolist() == [112_000_000, 113_500_000]
    assert trace.prompt_tokens.tolist() == [600, 1024]
    assert trace.output_tokens.tolist() == [5, 1]
    assert (trace.granularity, trace.num_nodes, rows(trace)) == (512, 3, [[0, 1], [0, 2]])
    assert trace.covered_tokens is not None
    assert trace.covered_tokens.tolist() == [600, 1024]
    assert trace.session is trace.parent is trace.think_ns is trace.priority is trace.kind is None
    assert trace.notes == ()
    dtypes = (trace.arrival_ns, trace.prompt_tokens, trace.output_tokens, trace.covered_tokens, trace.nodes)
    assert [np.asarray(column).dtype.name for column in dtypes] == ["int64", *["int32"] * 4]


def test_dynamo_sessions_and_delays(tmp_path: Path) -> None:
    turns = [
        {"session_id": "s", "timestamp": 1000, "input_length": 4, "output_length": 2, "hash_ids": [1]},
        {"session_id": "t", "timestamp": 1100, "input_length": 4, "output_length": 2, "hash_ids": [5]},
        {"session_id": "s", "delay": 250.5, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]},
    ]
    trace = read(tmp_path, "\n".join(map(json.dumps, turns)), id_tokens=4)
    assert trace.arrival_ns.tolist() == [1_000_000_000, 1_100_000_000, 1_250_500_000]
    assert trace.session is not None
    assert trace.parent is not None
    assert trace.think_ns is not None
    assert trace.session.tolist() == [0, 1, 0]
    assert trace.parent.tolist() == [-1, -1, 0]
    assert trace.think_ns.tolist() == [-1, -1, 250_500_000]
    assert "only a delay" in trace.notes[0]


def test_bailian_interns_content_ids_and_links_turns(tmp_path: Path) -> None:
    def turn(chat: int, parent: int, time: float, length: int, ids: list[int]) -> str:
        row = {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "input_length": length}
        return json.dumps(row | {"output_length": 20, "type": "text", "turn": 1, "hash_ids": ids})

    lines = [
        turn(9, -1, 0.114, 32, [1, 2]),
        turn(4, 9, 61.114, 60, [1, 2, 3, 4]),
        turn(5, -1, 70, 32, [2, 1]),
    ]
    trace = read(tmp_path, "\n".join(lines))
    assert trace.arrival_ns.tolist() == [114_000_000, 61_114_000_000, 70_000_000_000]
    # Ids 1 and 2 in another order are other prefixes; the first turn's answer is in the second turn's prompt.
    assert rows(trace) == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5]]
    assert trace.covered_tokens is not None
    assert trace.parent is not None
    assert trace.session is not None
    assert trace.covered_tokens.tolist() == [52, 60, 32]
    assert trace.parent.tolist() == [-1, 0, -1]
    assert trace.session.tolist() == [0, 0, 1]
    assert trace.kind_names == ("text",)


def test_azure_2023_keeps_seven_digits(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799601,4808,10\n"
    text += "2023-11-16 18:17:04.0319600,3180,8\n"
    trace = read(tmp_path, text)
    assert trace.arrival_ns.tolist() == [0, 51_999_900]
    assert trace.granularity == 0
    assert trace.nodes is None


@pytest.mark.parametrize("second", ["2024-05-10 00:00:00+00:00", "2024-05-10T02:00:00+02:00", "2024-05-10 00:00:00Z"])
def test_azure_2024_time_zones(tmp_path: Path, second: str) -> None:
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,8,1\n{second},9,2\n"
    trace = read(tmp_path, text)
    assert trace.arrival_ns.tolist() == [0, 9_930_000]
    assert trace.prompt_tokens.tolist() == [9, 8]
    assert trace.notes == ("1 row was out of order and has been sorted by arrival",)


def test_burstgpt_both_schemas(tmp_path: Path) -> None:
    old = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n"
    trace = read(tmp_path, old + "45,GPT-4,10,0,10,API log\n118.25,GPT-4,417,276,693,API log\n")
    assert trace.arrival_ns.tolist() == [5_000_000_000, 118_250_000_000]
    assert trace.kind is not None
    assert [trace.kind_names[k] for k in trace.kind] == ["ChatGPT", "GPT-4"]
    assert trace.notes == ("1 row with 0 Response tokens counted as failed and left out",)
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    body = "1.0,a,3,M,5,6,11,Conversation log\n2.0,,3,M,5,6,11,API log\n3.0,a,3,M,5,6,11,Conversation log\n"
    trace = read(tmp_path, head + body)
    assert trace.session is not None
    assert trace.parent is not None
    assert trace.session.tolist() == [0, -1, 0]
    assert trace.parent.tolist() == [-1, -1, 0]


def test_token_ids(tmp_path: Path) -> None:
    lines = [
        '{"timestamp": 2.0999999999999996, "prompt_token_ids": [5, 6], "output_token_ids": [7]}',
        '{"timestamp": 3, "prompt_token_ids": [5, 6, 7, 8], "output_length": 4}',
    ]
    trace = read(tmp_path, "\n".join(lines))
    assert trace.arrival_ns.tolist() == [2_100_000_000, 3_000_000_000]
    assert (trace.granularity, rows(trace)) == (1, [[0, 1, 2], [0, 1, 2, 3]])
    assert trace.covered_tokens is not None
    assert trace.covered_tokens.tolist() == [3, 4]
    assert trace.output_tokens.tolist() == [1, 4]


def test_gzip_zstd_stdin_bom_and_blank_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\ufeff" + MOONCAKE.replace("\n", "\r\n\n") + "\n\n"
    data = text.encode()
    plain = read(tmp_path, text)
    packed = {"a.gz": gzip.compress(data[:50]) + gzip.compress(data[50:]), "b": zstandard.compress(data)}
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
        assert rows(load_trace(tmp_path / name)) == rows(plain)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert load_trace("-").arrival_ns.tolist() == plain.arrival_ns.tolist()
    assert load_trace(tmp_path / "b").name == str(tmp_path / "b")


def test_out_of_order_rows_are_sorted_stably(tmp_path: Path) -> None:
    times = [5, 3, 5, 9, 3]
    lines = [
        json.dumps({"timestamp": t, "input_length": i + 1, "output_length": 1, "hash_ids": [i]})
        for i, t in enumerate(times)
    ]
    trace = read(tmp_path, "\n".join(lines))
    assert trace.prompt_tokens.tolist() == [2, 5, 1, 3, 4]
    assert rows(trace) == [[0], [1], [2], [3], [4]]
    assert trace.notes == ("2 rows were out of order and have been sorted by arrival",)
    first = read(tmp_path, "\n".join(lines), limit=2)
    assert first.prompt_tokens.tolist() == [2, 5]
    assert first.num_nodes == 2


def test_epoch_times_are_shifted(tmp_path: Path) -> None:
    text = MOONCAKE.replace("112", "1700000000112").replace("113.5", "1700000000113.5")
    trace = read(tmp_path, text)
    assert trace.arrival_ns.tolist() == [0, 1_500_000]
    assert "epoch" in trace.notes[0]


@pytest.mark.parametrize(("unit", "ns"), [("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)])
def test_time_unit_and_id_tokens(tmp_path: Path, unit: str, ns: int) -> None:
    text = MOONCAKE.replace("113.5", "114").replace("600", "300").replace("1024", "512")
    trace = read(tmp_path, text, time_unit=unit, id_tokens=256)
    assert trace.arrival_ns.tolist() == [112 * ns, 114 * ns]
    assert trace.granularity == 256


def test_ids_of_64_unsigned_bits(tmp_path: Path) -> None:
    ids = [2**64 - 1, 2**63, 2**63 - 1]
    lines = [
        json.dumps({"timestamp": i, "input_length": 5, "output_length": 1, "hash_ids": [v]})
        for i, v in enumerate([*ids, ids[0]])
    ]
    assert rows(read(tmp_path, "\n".join(lines))) == [[0], [1], [2], [0]]


def test_what_is_not_a_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="empty"):
        read(tmp_path, "\n")
    with pytest.raises(InputError, match=r"not recognised from 'a, b'.*mooncake.*--mapping"):
        read(tmp_path, "a,b\n1,2\n")
    with pytest.raises(InputError, match=r"no such file.*sample"):
        load_trace(tmp_path / "absent")
    with pytest.raises(InputError, match="cannot be read"):
        load_trace(tmp_path)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(MOONCAKE.encode())[:-6])
    with pytest.raises(InputError, match="cut short"):
        load_trace(tmp_path / "cut.gz")


def test_progress_reports_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    read(tmp_path, MOONCAKE, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(MOONCAKE), len(MOONCAKE))
