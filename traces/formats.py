"""The known formats: how each is recognised and how its fields are read. Add one by adding an entry."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from .errors import InputError
from .layout import Layout


@dataclass(frozen=True)
class Format:
    """One trace format: a layout and the field names by which its rows are recognised."""

    layout: Layout
    marks: frozenset[str]
    about: str

    @property
    def name(self) -> str:
        return self.layout.name


FORMATS = (
    Format(
        Layout(
            name="kvreplay",
            container="jsonl",
            arrival="arrival_ns",
            time_unit="ns",
            prompt_tokens="prompt_tokens",
            output_tokens="output_tokens",
            block_ids="nodes",
            id_tokens_field="granularity",
            covered_tokens="covered_tokens",
            session="session",
            row_id="row",
            parent="parent",
            think="think_ns",
            kind="kind",
            priority="priority",
        ),
        frozenset({"arrival_ns", "prompt_tokens", "output_tokens"}),
        "every column of a trace, JSON lines or Parquet",
    ),
    Format(
        Layout(
            name="bailian",
            container="jsonl",
            arrival="timestamp",
            time_unit="s",
            prompt_tokens="input_length",
            output_tokens="output_length",
            block_ids="hash_ids",
            id_tokens=16,
            row_id="chat_id",
            parent="parent_chat_id",
            kind="type",
        ),
        frozenset({"chat_id", "hash_ids"}),
        "Qwen-Bailian JSON lines (seconds, 16 tokens an id, linked turns)",
    ),
    Format(
        Layout(
            name="mooncake",
            container="jsonl",
            arrival="timestamp",
            time_unit="ms",
            prompt_tokens="input_length",
            output_tokens="output_length",
            block_ids="hash_ids",
            id_tokens=512,
            session="session_id",
            think="delay",
        ),
        frozenset({"input_length", "hash_ids"}),
        "Mooncake JSON lines (milliseconds, 512 tokens an id), also with Dynamo's session_id and delay",
    ),
    Format(
        Layout(
            name="tokens",
            container="jsonl",
            arrival="timestamp",
            time_unit="s",
            output_tokens="output_length",
            prompt_token_ids="prompt_token_ids",
            output_token_ids="output_token_ids",
            id_tokens=1,
            session="session_id",
        ),
        frozenset({"prompt_token_ids"}),
        "token-id JSON lines (seconds; output_token_ids, or output_length)",
    ),
    Format(
        Layout(
            name="azure",
            container="csv",
            arrival="TIMESTAMP",
            time_unit="datetime",
            prompt_tokens="ContextTokens",
            output_tokens="GeneratedTokens",
        ),
        frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
        "Azure LLM inference CSV, 2023 and 2024",
    ),
    Format(
        Layout(
            name="burstgpt",
            container="csv",
            arrival="Timestamp",
            time_unit="s",
            prompt_tokens="Request tokens",
            output_tokens="Response tokens",
            session="Session ID",
            kind="Model",
            zero_output_failed=True,
        ),
        frozenset({"Timestamp", "Request tokens", "Response tokens"}),
        "BurstGPT CSV, with or without Session ID and Elapsed time (seconds)",
    ),
)


def format_named(name: str) -> Format:
    """The format of that name; raises `InputError` naming the known ones."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise InputError(f"--format {name}: no such format, known are {', '.join(f.name for f in FORMATS)}")


def recognise(fields: AbstractSet[str]) -> Format | None:
    """The first format all of whose marks are among `fields`."""
    return next((known for known in FORMATS if known.marks <= fields), None)
