"""Recordings of the real engine's scheduler: reading them, and holding a replay against one.

A recording is a pair `NAME.npz` (arrays) and `NAME.json` (settings). Two dialects are read.
`tests/recordings` has the project's own, whose array names are the field names of `Recording`; they carry
their requests with them. The other dialect is that of the reference recordings, which name a trace file
instead.
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

REQUEST_COLUMNS = (
    "first_scheduled_ns",
    "first_token_ns",
    "finished_ns",
    "cached_first",
    "cached_resumed",
    "preemptions",
)
"""Of a request: its times, the tokens hit at its first and (in sum) later admissions, its preemptions."""


@dataclass(frozen=True)
class Steps:
    """The steps of a replay as columns; of the ragged ones, step `s` has `x[x_ptr[s]:x_ptr[s + 1]]`."""

    time_ns: npt.NDArray[np.int64]
    """The moment of scheduling."""
    duration_ns: npt.NDArray[np.int64]
    free: npt.NDArray[np.int64]
    """Length of the free queue right after scheduling."""
    evicted: npt.NDArray[np.int64] | None
    """Evictions by the scheduling of each step; None where only their sum was recorded."""
    entry_ptr: npt.NDArray[np.int64]
    request: npt.NDArray[np.int64]
    """Of each entry, that is, of each request scheduled in a step, in the engine's order."""
    computed: npt.NDArray[np.int64]
    scheduled: npt.NDArray[np.int64]
    block_ptr: npt.NDArray[np.int64]
    """Entry `e` gets `blocks[block_ptr[e]:block_ptr[e + 1]]`: new ones, or the whole table when admitted."""
    blocks: npt.NDArray[np.int64]
    preempted_ptr: npt.NDArray[np.int64]
    preempted: npt.NDArray[np.int64]
    finished_ptr: npt.NDArray[np.int64]
    finished: npt.NDArray[np.int64]
    """Requests that ended when the step's result was treated."""

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True)
class RecordedRequests:
    """The trace inside a recording. Request `i` has the token ids `tokens[token_ptr[i]:token_ptr[i + 1]]`.

    The first `prompt_tokens[i]` of them are its prompt; all others are its answer.
    """

    arrival_ns: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int64]
    max_tokens: npt.NDArray[np.int64]
    """What the engine was told; where that exceeds the answer's length, the answer ends with an EOS."""
    token_ptr: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]

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
    columns: dict[str, npt.NDArray[np.int64]]
    """A value a request for each of `REQUEST_COLUMNS`."""
    free_order: npt.NDArray[np.int64]
    """The free queue from its head when all is done."""
    evicted_total: int
    events: dict[str, int] = field(default_factory=dict)
    """How often the engine did things of interest, by the recorder's names."""
    exercises: tuple[str, ...] = ()
    """The events for whose sake the recording was made."""
    requests: RecordedRequests | None = None
    """None where the trace is a file of its own."""
    trace: dict[str, Any] | None = None
    """That file then: its `kind`, `path`, first `n` requests, and `time_scale` of the arrivals."""


# ---------------------------------------------------------------------- reading


def load_recording(path: str | Path) -> Recording:
    """Read a recording, given either file's path or that of both without suffix."""
    base = Path(path)
    base = base.with_suffix("") if base.suffix in (".npz", ".json") else base
    about = json.loads(base.with_name(base.name + ".json").read_text())
    with np.load(base.with_name(base.name + ".npz")) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if "cfg" in about:
        return _reference_recording(base.name, about, arrays)
    return _own_recording(base.name, about, arrays)


def _int64(values: Any) -> npt.NDArray[np.int64]:
    return np.asarray(values, dtype=np.int64)


def _own_recording(label: str, about: dict[str, Any], arrays: Mapping[str, Any]) -> Recording:
    steps = Steps(**{f.name: _int64(arrays[f.name]) for f in fields(Steps)})
    tokens = _int64(np.cumsum(arrays["token_differences"], dtype=np.int64))
    rest = [f.name for f in fields(RecordedRequests) if f.name != "tokens"]
    return Recording(
        name=label,
        settings=about["settings"],
        steps=steps,
        columns={column: _int64(arrays[column]) for column in REQUEST_COLUMNS},
        free_order=_int64(arrays["free_order"]),
        evicted_total=int(arrays["evicted"].sum()),
        events=about["events"],
        exercises=tuple(about["exercises"]),
        requests=RecordedRequests(tokens=tokens, **{name: _int64(arrays[name]) for name in rest}),
    )


_REFERENCE_STEP_ARRAYS = {
    "time_ns": "st_start",
    "duration_ns": "st_dur",
    "free": "st_free",
    "entry_ptr": "st_ptr",
    "request": "e_req",
    "computed": "e_comp",
    "scheduled": "e_ntok",
    "block_ptr": "e_bptr",
    "blocks": "blk",
    "preempted_ptr": "pre_ptr",
    "preempted": "pre",
    "finished_ptr": "fin_ptr",
    "finished": "fin",
}

_REFERENCE_REQUEST_ARRAYS = dict(
    zip(
        REQUEST_COLUMNS,
        ("first_sched", "first_tok", "finish", "cached_first", "cached_resume", "preempt"),
        strict=True,
    )
)


def _reference_recording(name: str, about: dict[str, Any], arrays: Mapping[str, Any]) -> Recording:
    """These count evictions when a result is treated, which is one step off in asynchronous mode."""
    config = about["cfg"]
    asynchronous = config["async_sched"]
    evicted = None if asynchronous else np.diff(_int64(arrays["removed_ptr"]))
    steps = {column: _int64(arrays[key]) for column, key in _REFERENCE_STEP_ARRAYS.items()}
    return Recording(
        name=name,
        settings={
            "num_blocks": config["blocks"],
            "block_size": config["block_size"],
            "max_num_seqs": config["max_num_seqs"],
            "max_num_batched_tokens": config["max_batched"],
            "long_prefill_token_threshold": config["long_prefill"],
            "scheduler_reserve_full_isl": not config["no_reserve_full_isl"],
            "watermark": config["watermark"],
            "policy": config["policy"],
            "async_scheduling": asynchronous,
            "prefix_caching": not config["no_caching"],
        },
        steps=Steps(evicted=evicted, **steps),
        columns={column: _int64(arrays[key]) for column, key in _REFERENCE_REQUEST_ARRAYS.items()},
        free_order=_int64(arrays["free_order"]),
        evicted_total=about["evictions"],
        trace={
            "kind": config["trace"],
            "path": config["path"],
            "n": config["n"],
            "time_scale": config["time_scale"],
        },
    )


# ---------------------------------------------------------------------- a replay's steps as columns


def columns_of(steps: Iterable[Mapping[str, Any]]) -> Steps:
    """Layout-log lines as columns; `steps` is read once, and a last `free_order` line is left out."""
    flat = {f.name: array("q") for f in fields(Steps)}
    for name in ("entry_ptr", "block_ptr", "preempted_ptr", "finished_ptr"):
        flat[name].append(0)
    for line in steps:
        if "step" in line:
            _append_line(flat, line)
    return Steps(**{name: _int64(values) for name, values in flat.items()})


def _append_line(flat: Mapping[str, array[int]], line: Mapping[str, Any]) -> None:
    number = len(flat["time_ns"])
    assert line["step"] == number, f"step {line['step']} stands where step {number} belongs"
    for name in ("time_ns", "duration_ns", "free", "evicted"):
        flat[name].append(line[name])
    for request, computed, scheduled, blocks in line["scheduled"]:
        flat["request"].append(request)
        flat["computed"].append(computed)
        flat["scheduled"].append(scheduled)
        flat["blocks"].extend(blocks)
        flat["block_ptr"].append(len(flat["blocks"]))
    flat["entry_ptr"].append(len(flat["request"]))
    for name in ("preempted", "finished"):
        flat[name].extend(line[name])
        flat[name + "_ptr"].append(len(flat[name]))


# ---------------------------------------------------------------------- comparing


def compare(
    recording: Recording,
    steps: Iterable[Mapping[str, Any]],
    free_order: Sequence[int] | npt.NDArray[Any],
    requests: Mapping[str, Sequence[int] | npt.NDArray[Any]],
) -> None:
    """Raise AssertionError naming the first difference between a recording and a replay of the same trace.

    `steps` are the layout-log lines as dicts, `free_order` the final free queue from its head, and
    `requests` has a value a request for each of `REQUEST_COLUMNS`. Every number must be equal. Of all
    differences in the steps, the one of the earliest step is named, since those after it follow from it.
    """
    got = columns_of(steps)
    expected = recording.steps
    found = [difference for difference in _step_differences(expected, got) if difference is not None]
    if found:
        raise AssertionError(f"{recording.name}: {min(found).text}")
    _check_list(f"{recording.name}: evictions, sum", _int64([recording.evicted_total]), _total(got.evicted))
    for column in REQUEST_COLUMNS:
        what = f"{recording.name}: {column} of request"
        _check_list(what, recording.columns[column], _int64(requests[column]))
    _check_list(f"{recording.name}: free queue at position", recording.free_order, _int64(free_order))


def _total(values: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    return _int64([0 if values is None else values.sum()])


def _check_list(what: str, expected: npt.NDArray[np.int64], got: npt.NDArray[np.int64]) -> None:
    at = _first_difference(expected, got)
    if at is not None:
        raise AssertionError(f"{what} {at}: expected {_item(expected, at)}, got {_item(got, at)}")


@dataclass(frozen=True, order=True)
class _Difference:
    """Where a replay leaves the recording; the smallest is the first, and the others may follow from it."""

    step: int
    rank: int
    """Of the field, in the order in which a step comes about."""
    entry: int
    """Place among the step's entries, 0 for fields of the step itself."""
    text: str


def _difference(step: int, rank: int, what: str, want: Any, have: Any, entry: int = 0) -> _Difference:
    return _Difference(step, rank, entry, f"step {step}: {what}: expected {want}, got {have}")


def _step_differences(expected: Steps, got: Steps) -> Iterator[_Difference | None]:
    yield _scalar_difference(0, "time_ns", expected, got)
    yield _list_difference(1, "preempted", expected, got)
    yield _count_difference(2, expected, got)
    yield from _entry_differences(3, expected, got)
    yield _scalar_difference(4, "free", expected, got)
    yield _scalar_difference(5, "evicted", expected, got)
    yield _scalar_difference(6, "duration_ns", expected, got)
    yield _list_difference(7, "finished", expected, got)


def _scalar_difference(rank: int, name: str, expected: Steps, got: Steps) -> _Difference | None:
    """Of a field with one number a step; None also where it was not recorded."""
    want, have = getattr(expected, name), getattr(got, name)
    if want is None or (step := _first_difference(want, have)) is None:
        return None
    return _difference(step, rank, name, _item(want, step), _item(have, step))


def _list_difference(rank: int, name: str, expected: Steps, got: Steps) -> _Difference | None:
    """Of a field with a list a step."""
    want = getattr(expected, name), getattr(expected, name + "_ptr")
    have = getattr(got, name), getattr(got, name + "_ptr")
    step = _first_ragged_difference(*want, *have)
    if step is None:
        return None
    return _difference(step, rank, name, _row(*want, step), _row(*have, step))


def _count_difference(rank: int, expected: Steps, got: Steps) -> _Difference | None:
    """Of the number of scheduled requests."""
    step = _first_difference(expected.entry_ptr[1:], got.entry_ptr[1:])
    if step is None:
        return None
    want = _row(expected.request, expected.entry_ptr, step)
    return _difference(step, rank, "scheduled requests", want, _row(got.request, got.entry_ptr, step))


def _entry_differences(rank: int, expected: Steps, got: Steps) -> Iterator[_Difference | None]:
    """Of each field of the scheduled requests."""
    for name in ("request", "computed", "scheduled"):
        entry = _first_difference(getattr(expected, name), getattr(got, name))
        yield _entry_difference(rank, name, entry, expected, got)
    entry = _first_ragged_difference(expected.blocks, expected.block_ptr, got.blocks, got.block_ptr)
    yield _entry_difference(rank, "new ids", entry, expected, got)


def _entry_difference(rank: int, name: str, entry: int | None, expected: Steps, got: Steps) -> _Difference | None:
    """The step is the recording's; where the replay has the entry in another one, a count differs first."""
    if entry is None:
        return None
    step = int(np.searchsorted(expected.entry_ptr, entry, side="right")) - 1
    place = entry - int(expected.entry_ptr[step])
    what = f"entry {place}: {name}"
    return _difference(step, rank, what, _entry(expected, entry), _entry(got, entry), place)


def _first_difference(expected: npt.NDArray[np.int64], got: npt.NDArray[np.int64]) -> int | None:
    """The first index at which two arrays differ, the end of the shorter one included."""
    common = min(len(expected), len(got))
    unequal = np.flatnonzero(expected[:common] != got[:common])
    if len(unequal):
        return int(unequal[0])
    return None if len(expected) == len(got) else common


def _first_ragged_difference(
    expected: npt.NDArray[np.int64],
    expected_ptr: npt.NDArray[np.int64],
    got: npt.NDArray[np.int64],
    got_ptr: npt.NDArray[np.int64],
) -> int | None:
    """The first row at which two ragged arrays differ, in length or in an item."""
    row = _first_difference(expected_ptr[1:], got_ptr[1:])
    item = _first_difference(expected, got)
    if item is None:
        return row
    row_of_item = int(np.searchsorted(expected_ptr, item, side="right")) - 1
    return row_of_item if row is None else min(row, row_of_item)


def _item(values: npt.NDArray[np.int64], index: int) -> int | str:
    return int(values[index]) if index < len(values) else "nothing"


def _row(values: npt.NDArray[np.int64], pointer: npt.NDArray[np.int64], row: int) -> list[int] | str:
    return values[pointer[row] : pointer[row + 1]].tolist() if row + 1 < len(pointer) else "nothing"


def _entry(steps: Steps, entry: int) -> list[Any] | str:
    """[request, computed, scheduled, [new ids]], as the layout log has it."""
    if entry >= len(steps.request):
        return "nothing"
    head = [int(column[entry]) for column in (steps.request, steps.computed, steps.scheduled)]
    return [*head, _row(steps.blocks, steps.block_ptr, entry)]
