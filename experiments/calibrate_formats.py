"""Reading recorded runs: a folder with both sides of each request, or a benchmark client's result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..traces.errors import InputError
from ..traces.trace import Trace
from .calibrate_folder import load_folder
from .calibrate_recorded import Recorded, in_order

_NEEDED = ("input_lens", "output_lens", "ttfts", "itls")


def load_recorded(path: str) -> Recorded:
    """Read a recorded run.

    Args:
        path: a folder (`requests.jsonl`, `workload.jsonl`, and where there are any `meta.json` and `timeseries.csv`),
            the JSON of `vllm bench serve --save-result --save-detailed`, or the JSON lines of SGLang's
            `bench_serving --output-details` (of several runs in one file, the last).

    Raises:
        InputError: it is none of these, or not whole.
    """
    place = Path(path)
    if place.is_dir():
        return load_folder(place)
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a recorded run: {error}") from None
    result = _last_object(path, text)
    missing = [name for name in _NEEDED if not isinstance(result.get(name), list)]
    if missing:
        raise InputError(
            f"{path}: no {', '.join(missing)} in it; expected a run saved with --save-result --save-detailed "
            "(vllm bench serve) or --output-details (sglang.bench_serving)"
        )
    return _from_benchmark(path, result)


def _last_object(path: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            value = json.loads(lines[-1]) if lines else None
        except ValueError as error:
            raise InputError(f"{path}:{len(lines)}: not JSON ({error}); expected a benchmark's result") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected one JSON object a run, as benchmark clients write them")
    return value


def _from_benchmark(path: str, result: dict[str, Any]) -> Recorded:
    lengths = {len(result[name]) for name in _NEEDED}
    if len(lengths) != 1:
        raise InputError(f"{path}: {', '.join(_NEEDED)} have different lengths; expected an entry a request")
    # A request that failed has no tokens, and says nothing of the engine's time.
    kept = [row for row, tokens in enumerate(result["output_lens"]) if tokens > 0 and result["input_lens"][row] > 0]
    if not kept:
        raise InputError(f"{path}: no request in it has a token; expected a benchmark run that went well")
    start = np.array(_start_times(path, result), float)[kept]
    first = start + np.array(result["ttfts"], float)[kept]
    last = first + np.array([sum(result["itls"][row]) for row in kept])
    origin = start.min()
    trace = Trace(
        path,
        np.zeros(len(kept), np.int64),
        np.array(result["input_lens"], np.int32)[kept],
        np.array(result["output_lens"], np.int32)[kept],
    )
    notes = ["no prefix identity in it: no prompt shares anything with another"]
    if len(kept) < len(result["ttfts"]):
        notes.append(f"{len(result['ttfts']) - len(kept)} requests without a token left out")
    return in_order(Recorded(path, trace, None, first - origin, last - origin, notes=tuple(notes)), start)


def _start_times(path: str, result: dict[str, Any]) -> list[float]:
    """When the client sent each request: recorded, or all at once where the client was told so."""
    count = len(result["ttfts"])
    times = result.get("start_times")
    if isinstance(times, list) and len(times) == count:
        return times
    if str(result.get("request_rate")).lower() in ("inf", "infinity"):
        limit = result.get("max_concurrency")
        if limit is None or limit >= count:
            return [0.0] * count
    raise InputError(
        f"{path}: no start_times, and not all requests were sent at once, so that nobody knows when each came; "
        "expected a run at --request-rate inf without --max-concurrency, or a client that saves start_times"
    )
