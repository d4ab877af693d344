"""Recorded runs as they are read: the folder, and the results of benchmark clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvreplay.experiments.calibrate_formats import load_recorded
from kvreplay.traces import InputError
from recorded_runs import recorded_folder

VLLM: dict[str, Any] = {
    "input_lens": [10, 20, 30],
    "output_lens": [3, 2, 0],
    "ttfts": [0.5, 0.25, 0.0],
    "itls": [[0.1, 0.2], [0.1], []],
    "start_times": [101.0, 100.0, 102.0],
}


def write(path: Path, content: Any) -> str:
    """Write JSON and return the path."""
    path.write_text(json.dumps(content))
    return str(path)


def test_a_result_of_vllm_bench_serve(tmp_path: Path) -> None:
    run = load_recorded(write(tmp_path / "run.json", VLLM))
    # In order of arrival, from the first; the failed request is left out and said to be.
    assert run.trace.prompt_tokens.tolist() == [20, 10]
    assert run.trace.arrival_ns.tolist() == [0, 1_000_000_000]
    np.testing.assert_allclose(run.first_s, [0.25, 1.5])
    np.testing.assert_allclose(run.last_s, [0.35, 1.8])
    assert run.measured_from == "arrival"
    assert "1 requests without a token left out" in run.notes


def test_a_result_of_sglang_bench_serving(tmp_path: Path) -> None:
    result = {key: value for key, value in VLLM.items() if key != "start_times"}
    file = tmp_path / "run.jsonl"
    older = json.dumps({**result, "input_lens": [1, 1, 1], "request_rate": "inf"})
    file.write_text(older + "\n" + json.dumps({**result, "request_rate": "inf"}) + "\n")
    run = load_recorded(str(file))
    # The last run in the file; all came at once.
    assert run.trace.prompt_tokens.tolist() == [10, 20]
    assert run.trace.arrival_ns.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"ttfts": []}, "no input_lens, output_lens, itls in it"),
        ({**VLLM, "itls": [[]]}, "have different lengths"),
        ({**VLLM, "start_times": None, "request_rate": 4.0}, "no start_times"),
        ({**VLLM, "start_times": None, "request_rate": "inf", "max_concurrency": 2}, "no start_times"),
        ({**VLLM, "output_lens": [0, 0, 0]}, "no request in it has a token"),
        ([1, 2], "expected one JSON object a run"),
    ],
)
def test_a_wrong_result(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recorded(write(tmp_path / "run.json", content))
    assert message in str(caught.value)


def test_what_is_no_json_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("three\nlines\nof text")
    with pytest.raises(InputError, match=r":3: not JSON"):
        load_recorded(str(file))
    with pytest.raises(InputError, match="cannot be read as a recorded run"):
        load_recorded(str(tmp_path / "absent.json"))


def folder(tmp_path: Path, requests: list[dict[str, Any]]) -> str:
    """A recorded run's folder with two requests in its workload."""
    workload = [
        {"timestamp": 0.0, "input_length": 20, "output_length": 3, "hash_ids": [1, 2]},
        {"timestamp": 0.5, "input_length": 16, "output_length": 2, "hash_ids": [1]},
    ]
    for name, rows in (("workload", workload), ("requests", requests)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path)


ROW = {"input_toks": 20, "arrival_s": 0.0, "queued_s": 0.1, "first_token_s": 0.3, "last_token_s": 0.5}


def test_a_folder(tmp_path: Path) -> None:
    place = folder(tmp_path, [ROW, {**ROW, "input_toks": 16, "arrival_s": 0.5, "queued_s": 0.6}])
    meta = {
        "engine_kwargs": {"model": "meta-llama/Llama-3.1-8B", "max_num_seqs": 64, "max_model_len": None},
        "kv_cache": {"num_gpu_blocks": 99, "block_size": 16},
        "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    run = load_recorded(place)
    assert run.measured_from == "queued"
    assert run.trace.arrival_ns.tolist() == [0, 500_000_000]
    assert run.ticks is None
    assert set(run.settings) == {
        "scheduler.max_num_seqs=64",
        "allocator.num_blocks=99",
        "allocator.block_size=16",
        'model="llama-3.1-8b"',
        'gpu="rtx-4090"',
    }


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([ROW], "2 requests in workload.jsonl but 1 in requests.jsonl"),
        ([ROW, ROW], "requests.jsonl:2: 20 prompt tokens, but the workload has 16"),
        ([ROW, {**ROW, "input_toks": 16, "first_token_s": None}], "requests.jsonl:2: first_token_s: expected seconds"),
    ],
)
def test_a_folder_that_does_not_fit_together(tmp_path: Path, requests: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recorded(folder(tmp_path, requests))
    assert message in str(caught.value)


def test_the_ticks_clock_is_found(tmp_path: Path) -> None:
    run = load_recorded(recorded_folder("rtx4090_llama-3.1-8b"))
    assert run.ticks is not None
    # Its logger started an eighth of a second before the first request.
    assert run.ticks.time_s[0] == pytest.approx(0.87, abs=0.05)
    assert run.ticks.kv_usage is not None
    # The recorded mean TTFT from the taking in of requests: what the run's own summary says.
    assert (run.first_s - run.start_s).mean() == pytest.approx(65.4566, abs=1e-3)
