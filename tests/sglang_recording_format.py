"""Recordings of SGLang's own scheduler: reading them, and holding a replay against one.

A recording is a pair `NAME.npz` (arrays) and `NAME.json` (settings). Two dialects are read.
`tests/sglang_recordings` has the project's own, whose array names are the field names of `Steps` and
`RecordedRequests`; they carry their requests with them, and their times are exact. The other dialect is that
of the reference recordings, which name a trace file instead and count time in floating-point seconds.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

REQUEST_COLUMNS = (
    "ingested_ns",
    "first_scheduled_ns",
    "first_token_ns",
    "finished_ns",
    "cached_first",
    "cached_resumed",
    "preemptions",
    "generated",
    "prefills",
)
"""Of a request: its times (the first: when the scheduler took it in), the tokens hit at its first and (in sum)
later admissions, its retractions, generated tokens, and extend batches. -1: it did not come to that."""

KINDS = ("extend", "decode", "mixed")

PER_STEP = (
    "kind",
    "time_ns",
    "start_ns",
    "duration_ns",
    "prefill_tokens",
    "decode_seqs",
    "context_tokens",
    "free",
    "available",
    "evictable",
    "waiting",
    "running",
    "evicted",
)
RAGGED = ("scheduled", "slots", "evictions", "preempted", "finished")


@dataclass(frozen=True)
class Steps:
    """The launched batches of a replay as columns. None where a side does not know a column.

    Of the ragged ones, step `s` has `x[p[s]:p[s + 1]]`, where `p` is the pointer of their group.
    """

    time_ns: Numbers
    """The moment of scheduling."""
    duration_ns: Numbers
    entry_ptr: Numbers
    request: Numbers
    """Of each entry, that is, of each request in a batch, in the engine's order."""
    computed: Numbers
    scheduled: Numbers
    slot_ptr: Numbers
    slots: Numbers
    """Slot ids handed out in a step, one by one, in batch order."""
    evicted: Numbers
    """Slots dropped from the tree since the launch before."""
    preempted_ptr: Numbers
    preempted: Numbers
    """Requests retracted since the launch before, in order."""
    row: Numbers | None = None
    """Of each entry, its line in the request-to-slot table."""
    kind: Numbers | None = None
    """Index into `KINDS`."""
    start_ns: Numbers | None = None
    """The moment at which the device begins."""
    prefill_tokens: Numbers | None = None
    decode_seqs: Numbers | None = None
    context_tokens: Numbers | None = None
    free: Numbers | None = None
    """Length of the free list (pages where there are pages) right after scheduling."""
    available: Numbers | None = None
    evictable: Numbers | None = None
    """Slots, right after scheduling."""
    waiting: Numbers | None = None
    running: Numbers | None = None
    """Requests of the queue and of the running list, right after scheduling."""
    eviction_ptr: Numbers | None = None
    asked: Numbers | None = None
    dropped: Numbers | None = None
    """Of each eviction since the launch before: the slots that were short, and those that were dropped."""
    finished_ptr: Numbers | None = None
    finished: Numbers | None = None
    """Requests that ended when the step's result was treated."""
    new_token_ratio: npt.NDArray[np.float64] | None = None
    """Right after scheduling."""

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True)
class RecordedRequests:
    """The trace inside a recording. Request `i` has the token ids `tokens[token_ptr[i]:token_ptr[i + 1]]`.

    The first `prompt_tokens[i]` of them are its prompt; all others are its answer.
    """

    arrival_ns: Numbers
    prompt_tokens: Numbers
    max_new_tokens: Numbers
    """What the engine was told; where that exceeds the answer's length, the answer ends with an EOS."""
    token_ptr: Numbers
    tokens: Numbers

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def prompt(self, row: int) -> list[int]:
        start = int(self.token_ptr[row])
        return self.tokens[start : start + int(self.prompt_tokens[row])].tolist()

    def output(self, row: int) -> list[int]:
        start = int(self.token_ptr[row]) + int(self.prompt_tokens[row])
        return self.tokens[start : int(self.token_ptr[row + 1])].tolist()


@dataclass(frozen=True)
class Recording:
    """One run of the engine's own code."""

    name: str
    settings: dict[str, Any]
    """Keyword arguments for a replay, under the engine's names."""
    steps: Steps
    columns: dict[str, Numbers]
    """A value a request for each of `REQUEST_COLUMNS`."""
    free_order: Numbers
    """The free list from its head when all is done."""
    row_order: Numbers
    """The free rows when all is done; the last is taken next."""
    late_evictions: tuple[int, int] = (0, 0)
    """Evictions after the last launch, and the slots that they dropped."""
    tolerance_ns: int = 0
    """What times may differ by."""
    events: dict[str, int] = field(default_factory=dict)
    """How often the engine did things of interest, by the recorder's names."""
    exercises: tuple[str, ...] = ()
    """The events for whose sake the recording was made."""
    requests: RecordedRequests | None = None
    """None where the trace is a file of its own."""
    trace: dict[str, Any] | None = None
    """That file then: its `kind`, its first `n` requests, and `max_new_tokens`, None for the recorded length."""


# ---------------------------------------------------------------------- reading


def load_recording(path: str | Path) -> Recording:
    """Read a recording, given either file's path or that of both without suffix."""
    base = Path(path)
    base = base.with_suffix("") if base.suffix in (".npz", ".json") else base
    about = json.loads(base.with_name(base.name + ".json").read_text())
    with np.load(base.with_name(base.name + ".npz")) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if "args" in about:
        return _reference_recording(base.name, about["args"], arrays)
    return _own_recording(base.name, about, arrays)


def _int64(values: Any) -> Numbers:
    return np.asarray(values, dtype=np.int64)


def _own_recording(label: str, about: dict[str, Any], arrays: Mapping[str, Any]) -> Recording:
    lengths = arrays["run_length"]
    slots = _expand(arrays["run_start"], lengths)
    ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    columns = {f.name: _int64(arrays[f.name]) for f in fields(Steps) if f.name in arrays}
    columns |= {"slots": slots, "slot_ptr": ends[arrays["run_ptr"]]}
    columns["new_token_ratio"] = arrays["new_token_ratio"]
    tokens = _int64(np.cumsum(arrays["token_differences"], dtype=np.int64))
    rest = [f.name for f in fields(RecordedRequests) if f.name != "tokens"]
    return Recording(
        name=label,
        settings=about["settings"],
        steps=Steps(**columns),
        columns={column: _int64(arrays[column]) for column in REQUEST_COLUMNS},
        free_order=_int64(arrays["free_order"]),
        row_order=_int64(arrays["row_order"]),
        events=about["events"],
        exercises=tuple(about["exercises"]),
        requests=RecordedRequests(tokens=tokens, **{name: _int64(arrays[name]) for name in rest}),
    )


def _expand(starts: Any, lengths: Any) -> Numbers:
    """Runs of consecutive numbers, one number at a time."""
    starts, lengths = _int64(starts), _int64(lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum(), dtype=np.int64) + np.repeat(starts - before, lengths)


def _nanoseconds(seconds: Any) -> Numbers:
    """Negative: it never happened."""
    return np.where(seconds < 0, -1, np.rint(np.asarray(seconds) * 1e9)).astype(np.int64)


_REFERENCE_STEP_COLUMNS = {
    "kind": 0,
    "prefill_tokens": 4,
    "decode_seqs": 5,
    "context_tokens": 6,
    "available": 7,
    "evictable": 8,
    "waiting": 9,
    "running": 10,
}


def _reference_recording(name: str, args: dict[str, Any], arrays: Mapping[str, Any]) -> Recording:
    """These do not tell which requests ended by which step, but when each ended."""
    assert args["cache"] == "unified"
    table = arrays["step_meta"]
    n = len(table)
    launched = arrays["evicts"][:, 0] < n
    evictions, late = arrays["evicts"][launched], arrays["evicts"][~launched]
    retracts = arrays["retracts"]
    ends = np.concatenate(([0], np.cumsum(arrays["run_len"], dtype=np.int64)))
    steps = Steps(
        time_ns=_nanoseconds(table[:, 1]),
        start_ns=_nanoseconds(table[:, 2]),
        duration_ns=_nanoseconds(table[:, 3] - table[:, 2]),
        entry_ptr=_int64(arrays["step_off"]),
        request=_int64(arrays["row_rid"]),
        computed=_int64(arrays["row_prefix"]),
        scheduled=_int64(arrays["row_len"]),
        row=_int64(arrays["row_reqidx"]),
        slots=_expand(arrays["run_start"], arrays["run_len"]),
        slot_ptr=ends[arrays["run_off"]],
        evicted=_int64(np.bincount(evictions[:, 0], weights=evictions[:, 2], minlength=n)),
        eviction_ptr=_pointer(evictions[:, 0], n),
        asked=_int64(evictions[:, 1]),
        dropped=_int64(evictions[:, 2]),
        preempted_ptr=_pointer(retracts[:, 0], n),
        preempted=_int64(retracts[:, 1]),
        new_token_ratio=arrays["step_ratio"],
        free=_int64(table[:, 7]) // args["page_size"],
        **{column: _int64(table[:, place]) for column, place in _REFERENCE_STEP_COLUMNS.items()},
    )
    log = arrays["req_log"]
    counts = _int64(log[:, 5:])
    columns = {column: _nanoseconds(log[:, place]) for place, column in enumerate(REQUEST_COLUMNS[:4], 1)}
    columns |= dict(zip(REQUEST_COLUMNS[4:], counts.T, strict=True))
    columns["cached_resumed"] = counts[:, 1] - np.maximum(counts[:, 0], 0)
    return Recording(
        name=name,
        settings={
            "num_slots": args["slots"],
            "page_size": args["page_size"],
            "chunked_prefill_size": args["chunk"],
            "max_prefill_tokens": args["max_prefill_tokens"],
            "schedule_policy": args["policy"],
            "schedule_conservativeness": args["conservativeness"],
            "radix_eviction_policy": args["evict"],
            "disable_radix_cache": args["no_radix"],
            "disable_overlap_schedule": args["no_overlap"],
            "enable_mixed_chunk": args["mixed"],
            "max_running_requests": args["max_running"],
            "context_length": args["context_len"],
        },
        steps=steps,
        columns=columns,
        free_order=_int64(arrays["final_free_pages"]),
        row_order=_int64(arrays["req_free_slots"]),
        late_evictions=(len(late), int(late[:, 2].sum())),
        tolerance_ns=1000,
        trace={
            "kind": args["trace"],
            "n": args["n"],
            "max_new_tokens": args["max_new"] if args["finish"] == "eos" else None,
        },
    )


def _pointer(step_of: Any, steps: int) -> Numbers:
    """Where each step's part begins in a list that is sorted by step."""
    return np.searchsorted(step_of, np.arange(steps + 1)).astype(np.int64)


# ---------------------------------------------------------------------- a replay's steps as columns

_SPELLED_OUT = ("time_ns", "duration_ns", "evicted")
_EXTRAS = (
    "start_ns",
    "prefill_tokens",
    "decode_seqs",
    "context_tokens",
    "free",
    "available",
    "evictable",
    "waiting",
    "running",
)


def columns_of(steps: Iterable[Mapping[str, Any]]) -> Steps:
    """Layout-log lines as columns; `steps` is read once, and a last `free_order` line is left out.

    What a line has beyond the layout log (`kind`, `rows`, `evictions`, ...) becomes a column as well. All
    lines have the same keys.
    """
    flat: dict[str, array[Any]] = {}
    for line in steps:
        if "step" in line:
            _append_line(flat, line)
    columns: dict[str, Any] = {name: _int64(values) for name, values in flat.items()}
    if "new_token_ratio" in flat:
        columns["new_token_ratio"] = np.asarray(flat["new_token_ratio"])
    return Steps(**columns)


def _append_line(flat: dict[str, array[Any]], line: Mapping[str, Any]) -> None:
    def column(name: str, kind: str = "q") -> array[Any]:
        if name not in flat:
            flat[name] = array(kind, [0] if name.endswith("_ptr") else [])
        return flat[name]

    number = len(column("time_ns"))
    assert line["step"] == number, f"step {line['step']} stands where step {number} belongs"
    for name in (*_SPELLED_OUT, *(name for name in _EXTRAS if name in line)):
        column(name).append(line[name])
    if "kind" in line:
        column("kind").append(KINDS.index(line["kind"]))
    if "new_token_ratio" in line:
        column("new_token_ratio", "d").append(line["new_token_ratio"])
    for request, computed, scheduled, runs in line["scheduled"]:
        column("request").append(request)
        column("computed").append(computed)
        column("scheduled").append(scheduled)
        for start, length in runs:
            column("slots").extend(range(start, start + length))
    column("entry_ptr").append(len(column("request")))
    column("slot_ptr").append(len(column("slots")))
    if "rows" in line:
        column("row").extend(line["rows"])
    if "evictions" in line:
        column("asked").extend(asked for asked, _ in line["evictions"])
        column("dropped").extend(dropped for _, dropped in line["evictions"])
        column("eviction_ptr").append(len(column("asked")))
    for name in ("preempted", "finished"):
        column(name).extend(line[name])
        column(name + "_ptr").append(len(column(name)))


# ---------------------------------------------------------------------- comparing


def compare(
    recording: Recording,
    steps: Iterable[Mapping[str, Any]],
    free_order: Sequence[int] | npt.NDArray[Any],
    requests: Mapping[str, Sequence[int] | npt.NDArray[Any]],
    row_order: Sequence[int] | None = None,
) -> None:
    """Raise AssertionError naming the first difference between a recording and a replay of the same trace.

    `steps` are the layout-log lines as dicts, with whatever further columns the replay knows; `free_order` is
    the final free list from its head, `row_order` that of the rows; `requests` has a value a request for each
    of `REQUEST_COLUMNS`, or for those that the replay knows. Every number must be equal, except that times may
    differ by the recording's tolerance. Of all differences in the steps, the one of the earliest step is
    named, since those after it follow from it.
    """
    got = columns_of(steps)
    found = [d for d in _step_differences(recording, got) if d is not None]
    if found:
        raise AssertionError(f"{recording.name}: {min(found).text}")
    for column in REQUEST_COLUMNS:
        if column in requests:
            slack = recording.tolerance_ns if column.endswith("_ns") else 0
            what = f"{recording.name}: {column} of request"
            _check_list(what, recording.columns[column], _int64(requests[column]), slack)
    _check_list(f"{recording.name}: free list at position", recording.free_order, _int64(free_order))
    if row_order is not None:
        _check_list(f"{recording.name}: free rows at position", recording.row_order, _int64(row_order))


def _check_list(what: str, expected: Numbers, got: Numbers, slack: int = 0) -> None:
    at = _first_difference(expected, got, slack)
    if at is not None:
        raise AssertionError(f"{what} {at}: expected {_item(expected, at)}, got {_item(got, at)}")


@dataclass(frozen=True, order=True)
class _Difference:
    """Where a replay leaves the recording; the smallest is the first, and the others may follow from it."""

    step: int
    rank: int
    """Of the field, in the order in which a step comes about."""
    text: str


def _difference(step: int, rank: int, what: str, want: Any, have: Any) -> _Difference:
    return _Difference(step, rank, f"step {step}: {what}: expected {want}, got {have}")


_LISTS = (
    ("preempted", "preempted", "preempted_ptr"),
    ("evictions, slots short", "asked", "eviction_ptr"),
    ("evictions, slots dropped", "dropped", "eviction_ptr"),
    ("scheduled requests", "request", "entry_ptr"),
    ("computed tokens", "computed", "entry_ptr"),
    ("scheduled tokens", "scheduled", "entry_ptr"),
    ("rows", "row", "entry_ptr"),
    ("slots", "slots", "slot_ptr"),
    ("finished", "finished", "finished_ptr"),
)


def _step_differences(recording: Recording, got: Steps) -> Iterator[_Difference | None]:
    """Of each column that both sides know."""
    expected, slack = recording.steps, recording.tolerance_ns
    yield _scalar_difference(0, "time_ns", expected, got, slack)
    yield _scalar_difference(1, "kind", expected, got, 0)
    for rank, (what, name, pointer) in enumerate(_LISTS, 2):
        yield _list_difference(rank, what, name, pointer, expected, got)
    for name in PER_STEP[2:]:
        yield _scalar_difference(20, name, expected, got, slack if name.endswith("_ns") else 0)
    want, have = expected.new_token_ratio, got.new_token_ratio
    if want is not None and have is not None and (step := _first_difference(want, have)) is not None:
        yield _difference(step, 21, "new-token ratio", _item(want, step), _item(have, step))


def _scalar_difference(rank: int, name: str, expected: Steps, got: Steps, slack: int) -> _Difference | None:
    want, have = getattr(expected, name), getattr(got, name)
    if want is None or have is None or (step := _first_difference(want, have, slack)) is None:
        return None
    return _difference(step, rank, name, _item(want, step), _item(have, step))


def _list_difference(rank: int, what: str, name: str, pointer: str, expected: Steps, got: Steps) -> _Difference | None:
    want = getattr(expected, name), getattr(expected, pointer)
    have = getattr(got, name), getattr(got, pointer)
    if want[0] is None or have[0] is None:
        return None
    step = _first_ragged_difference(*want, *have)
    if step is None:
        return None
    return _difference(step, rank, what, _row(*want, step), _row(*have, step))


def _first_difference(expected: Any, got: Any, slack: int = 0) -> int | None:
    """The first index at which two arrays differ, the end of the shorter one included."""
    common = min(len(expected), len(got))
    unequal = np.flatnonzero(np.abs(expected[:common] - got[:common]) > slack)
    if len(unequal):
        return int(unequal[0])
    return None if len(expected) == len(got) else common


def _first_ragged_difference(expected: Numbers, expected_ptr: Numbers, got: Numbers, got_ptr: Numbers) -> int | None:
    """The first step at which two ragged arrays differ, in length or in an item."""
    step = _first_difference(expected_ptr[1:], got_ptr[1:])
    item = _first_difference(expected, got)
    if item is None:
        return step
    step_of_item = int(np.searchsorted(expected_ptr, item, side="right")) - 1
    return step_of_item if step is None else min(step, step_of_item)


def _item(values: Any, index: int) -> Any:
    return values[index].item() if index < len(values) else "nothing"


def _row(values: Numbers, pointer: Numbers, step: int) -> list[int] | str:
    return values[pointer[step] : pointer[step + 1]].tolist() if step + 1 < len(pointer) else "nothing"
