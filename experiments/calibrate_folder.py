"""Reading a recorded run's folder: the workload, and what the engine measured of each request."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from ..traces.errors import InputError
from ..traces.load import load_trace
from .calibrate_recorded import Float64, Recorded, Ticks, in_order
from .capacity_presets import read_preset

_TIMES = ("arrival_s", "first_token_s", "last_token_s")
_SCHEDULER = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "long_prefill_token_threshold",
    "scheduler_reserve_full_isl",
    "policy",
    "async_scheduling",
)
"""Settings with the same name and meaning on both sides."""
_ALLOCATOR = {"num_gpu_blocks": "num_blocks", "block_size": "block_size", "enable_prefix_caching": "prefix_caching"}


def load_folder(folder: Path) -> Recorded:
    """Read a folder of `requests.jsonl` (times in seconds from the run's start), `workload.jsonl` (time stamps in
    seconds, block ids of 16 tokens), `meta.json` and `timeseries.csv`; the last two may be absent.

    Raises:
        InputError: a file is absent or does not say what it should.
    """
    rows = _requests(folder / "requests.jsonl")
    trace = load_trace(folder / "workload.jsonl", format="mooncake", time_unit="s", id_tokens=16)
    if len(trace) != len(rows):
        raise InputError(f"{folder}: {len(trace)} requests in workload.jsonl but {len(rows)} in requests.jsonl")
    for number, (row, prompt) in enumerate(zip(rows, trace.prompt_tokens.tolist(), strict=True), 1):
        if row.get("input_toks", prompt) != prompt:
            raise InputError(
                f"{folder / 'requests.jsonl'}:{number}: {row['input_toks']} prompt tokens, but the workload has "
                f"{prompt}; expected the same requests in the same order"
            )
    times = {name: _column(folder, rows, name) for name in _TIMES}
    queued = _column(folder, rows, "queued_s") if "queued_s" in rows[0] else None
    # The wall clock of the arrivals may step back by a little; the order is the client's.
    arrival = np.maximum.accumulate(np.maximum(times["arrival_s"], 0.0))
    recorded = Recorded(
        folder.resolve().name,
        trace,
        queued,
        times["first_token_s"],
        times["last_token_s"],
        _settings(folder / "meta.json"),
        _ticks(folder / "timeseries.csv", times["first_token_s"], trace.prompt_tokens.astype(float)),
    )
    return in_order(recorded, arrival)


def _requests(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_text(path, "the recorded requests").splitlines(), 1):
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            raise InputError(f"{path}:{number}: not a JSON object; expected one a request") from None
    if not rows:
        raise InputError(f"{path}: no requests in it")
    return rows


def _column(folder: Path, rows: list[dict[str, Any]], name: str) -> Float64:
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get(name), (int, float)):
            raise InputError(f"{folder / 'requests.jsonl'}:{number}: {name}: expected seconds, got {row.get(name)!r}")
    return np.array([row[name] for row in rows], float)


def _settings(path: Path) -> tuple[str, ...]:
    """The engine's settings in `meta.json`, as far as they bear on a replay, as `key.path=value`."""
    if not path.exists():
        return ()
    try:
        meta = json.loads(_text(path, "the engine's settings"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    told = meta.get("engine_kwargs") or {}
    # max_model_len may be null: the model's own, which our default is long enough for.
    said = {**told, **(meta.get("scheduler_config") or {}), "max_model_len": told.get("max_model_len")}
    values = {f"scheduler.{name}": said.get(name) for name in _SCHEDULER}
    values |= {
        "model": _preset("models", said.get("model") or meta.get("model")),
        "gpu": _preset("gpus", (meta.get("hardware") or {}).get("device_name")),
        "tensor_parallel": told.get("tensor_parallel_size"),
    }
    cache = meta.get("kv_cache") or {}
    values["gpu_memory_utilization"] = cache.get("gpu_memory_utilization")
    values |= {f"allocator.{ours}": cache.get(theirs) for theirs, ours in _ALLOCATOR.items()}
    return tuple(f"{key}={json.dumps(value)}" for key, value in values.items() if value is not None)


def _preset(kind: str, name: str | None) -> str | None:
    """The preset that goes by the recorded name, if there is one."""
    if name is None:
        return None
    try:
        return read_preset(kind, name, kind)[1]
    except InputError:
        return None


def _ticks(path: Path, first_s: Float64, prompt_tokens: Float64) -> Ticks | None:
    if not path.exists():
        return None
    rows = list(csv.DictReader(_text(path, "the engine's state over time").splitlines()))
    try:
        columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
        time, prompts = columns["t"], columns["prompt_throughput"]
        running, waiting = columns["running"], columns["waiting"]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: {error}: expected columns t, prompt_throughput, running, waiting") from None
    usage = columns.get("kv_cache_pct")
    offset = _clock_offset(time, prompts, first_s, prompt_tokens)
    return Ticks(time - offset, running, waiting, usage if usage is not None and usage.any() else None)


def _clock_offset(time: Float64, throughput: Float64, first_s: Float64, prompt_tokens: Float64) -> float:
    """Return how much earlier the ticks' clock started than the requests', in seconds.

    A tick counts a prompt's tokens when its first token came. So the offset is where the prompts counted per tick fit
    the recorded throughput best; of equal ones, the middle.
    """
    if len(time) < 2:
        return 0.0
    interval = time[1] - time[0]
    edges = np.concatenate(([time[0] - interval], time))
    offsets = np.arange(-1.0, 1.0, 0.01)
    misfit = [
        np.abs(np.histogram(first_s + offset, edges, weights=prompt_tokens)[0] - throughput * interval).sum()
        for offset in offsets
    ]
    return float(np.median(offsets[np.asarray(misfit) <= min(misfit) + 1e-9]))


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; a recorded run's folder has {what} there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
