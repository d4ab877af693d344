"""Writing a trace in any of the known formats, without loss where the format can hold it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .errors import InputError
from .identity import prompt_nodes, token_ids, with_identity
from .output import whole_file
from .times import NS_PER_UNIT
from .trace import Trace

_ROWS_A_WRITE = 4096


def write_trace(trace: Trace, path: str | Path, format: str) -> tuple[str, ...]:
    """Write a trace; the file appears whole or not at all, compressed by its suffix.

    Args:
        trace: what to write.
        path: where to; '-' for stdout.
        format: name of the format, or `parquet` for format kvreplay in Parquet.

    Returns:
        What the format could not hold, one sentence each.

    Raises:
        InputError: no such format, or `path` cannot be written.
    """
    if format == "parquet":
        from .parquet import write_parquet

        write_parquet(trace, path)
        return ()
    if format not in WRITERS:
        raise InputError(f"--to {format}: no such format, known are {', '.join((*WRITERS, 'parquet'))}")
    lines = WRITERS[format](trace)
    with whole_file(path) as stream:
        for block in _joined(lines):
            stream.write(block)
    return losses(trace, format)


def losses(trace: Trace, format: str) -> tuple[str, ...]:
    """What `format` cannot hold of the trace, one sentence each."""
    lost: list[str] = []
    if format in ("azure", "burstgpt") and trace.granularity:
        lost.append("prefix identity is not written: the format has none")
    if format == "azure" and trace.session is not None:
        lost.append("sessions are not written: the format has none")
    if format == "azure" and trace.arrival_ns[0] != 0:
        lost.append("arrivals will count from the first request")
    if format in ("mooncake", "bailian") and trace.granularity not in (0, _id_tokens(format)):
        lost.append(f"block ids stand for {trace.granularity} tokens: read it with --id-tokens {trace.granularity}")
    if format not in ("kvreplay", "mooncake") and trace.think_ns is not None:
        lost.append("stated think times are not written")
    if format not in ("kvreplay", "bailian", "burstgpt") and trace.kind is not None:
        lost.append("the requests' classes are not written")
    if format != "kvreplay" and trace.priority is not None:
        lost.append("priorities are not written")
    return tuple(lost)


def decimal_text(ns: int, unit: str) -> str:
    """A time in `unit` as exact decimal text, without needless digits."""
    scale = NS_PER_UNIT[unit]
    whole, rest = divmod(ns, scale)
    return f"{whole}.{rest:0{len(str(scale)) - 1}d}".rstrip("0") if rest else str(whole)


def _id_tokens(format: str) -> int:
    return 16 if format == "bailian" else 512


def _joined(lines: Iterator[str]) -> Iterator[bytes]:
    held: list[str] = []
    for line in lines:
        held.append(line)
        if len(held) == _ROWS_A_WRITE:
            yield "".join(held).encode()
            held = []
    yield "".join(held).encode()


def _mooncake(trace: Trace) -> Iterator[str]:
    trace = with_identity(trace, _id_tokens("mooncake"))
    nodes, ptr = prompt_nodes(trace)
    for i in range(len(trace)):
        row = f'{{"timestamp": {decimal_text(int(trace.arrival_ns[i]), "ms")}'
        row += f', "input_length": {trace.prompt_tokens[i]}, "output_length": {trace.output_tokens[i]}'
        row += f', "hash_ids": {nodes[ptr[i] : ptr[i + 1]].tolist()}'
        if trace.session is not None and trace.session[i] >= 0:
            row += f', "session_id": {trace.session[i]}'
        if trace.think_ns is not None and trace.think_ns[i] >= 0:
            row += f', "delay": {decimal_text(int(trace.think_ns[i]), "ms")}'
        yield row + "}\n"


def _bailian(trace: Trace) -> Iterator[str]:
    trace = with_identity(trace, _id_tokens("bailian"))
    nodes, ptr = prompt_nodes(trace)
    turn: list[int] = []
    for i in range(len(trace)):
        parent = -1 if trace.parent is None else int(trace.parent[i])
        turn.append(1 if parent < 0 else turn[parent] + 1)
        kind = "text" if trace.kind is None else _kind(trace, i)
        yield (
            f'{{"chat_id": {i}, "parent_chat_id": {parent}'
            f', "timestamp": {decimal_text(int(trace.arrival_ns[i]), "s")}'
            f', "input_length": {trace.prompt_tokens[i]}, "output_length": {trace.output_tokens[i]}'
            f', "type": {json.dumps(kind)}, "turn": {turn[i]}'
            f', "hash_ids": {nodes[ptr[i] : ptr[i + 1]].tolist()}}}\n'
        )


def _tokens(trace: Trace) -> Iterator[str]:
    trace = with_identity(trace, 1)
    covered = trace.covered_tokens
    assert covered is not None
    for i in range(len(trace)):
        prompt, output = int(trace.prompt_tokens[i]), int(trace.output_tokens[i])
        ids = token_ids(trace, i, int(covered[i])).tolist()
        row = f'{{"timestamp": {decimal_text(int(trace.arrival_ns[i]), "s")}'
        if trace.session is not None and trace.session[i] >= 0:
            row += f', "session_id": {trace.session[i]}'
        row += f', "prompt_token_ids": {ids[:prompt]}'
        known = covered[i] == prompt + output
        row += f', "output_token_ids": {ids[prompt:]}' if known else f', "output_length": {output}'
        yield row + "}\n"


def _azure(trace: Trace) -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    start = datetime(2000, 1, 1, tzinfo=UTC)
    for i in range(len(trace)):
        seconds, ns = divmod(int(trace.arrival_ns[i]), 10**9)
        stamp = (start + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")
        fraction = f"{ns:09d}"
        fraction = fraction[:7] if fraction.endswith("00") else fraction
        yield f"{stamp}.{fraction},{trace.prompt_tokens[i]},{trace.output_tokens[i]}\n"


def _burstgpt(trace: Trace) -> Iterator[str]:
    yield "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    for i in range(len(trace)):
        prompt, output = int(trace.prompt_tokens[i]), int(trace.output_tokens[i])
        session = "" if trace.session is None or trace.session[i] < 0 else str(trace.session[i])
        time, kind = decimal_text(int(trace.arrival_ns[i]), "s"), _kind(trace, i)
        yield f"{time},{session},,{_quoted(kind)},{prompt},{output},{prompt + output},API log\n"


def _kvreplay(trace: Trace) -> Iterator[str]:
    optional = [
        (name, column)
        for name in ("covered_tokens", "session", "parent", "think_ns", "priority")
        if (column := getattr(trace, name)) is not None
    ]
    for i in range(len(trace)):
        row = f'{{"row": {i}, "arrival_ns": {trace.arrival_ns[i]}'
        row += f', "prompt_tokens": {trace.prompt_tokens[i]}, "output_tokens": {trace.output_tokens[i]}'
        row += "".join(f', "{name}": {column[i]}' for name, column in optional)
        if trace.kind is not None and trace.kind[i] >= 0:
            row += f', "kind": {json.dumps(_kind(trace, i))}'
        if trace.nodes is not None and trace.node_ptr is not None:
            nodes = trace.nodes[trace.node_ptr[i] : trace.node_ptr[i + 1]].tolist()
            row += f', "granularity": {trace.granularity}, "nodes": {nodes}'
        yield row + "}\n"


def _kind(trace: Trace, row: int) -> str:
    return "" if trace.kind is None or trace.kind[row] < 0 else trace.kind_names[trace.kind[row]]


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\r\n') else text


WRITERS: dict[str, Callable[[Trace], Iterator[str]]] = {
    "kvreplay": _kvreplay,
    "mooncake": _mooncake,
    "bailian": _bailian,
    "tokens": _tokens,
    "azure": _azure,
    "burstgpt": _burstgpt,
}
