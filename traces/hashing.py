"""From token ids, or text and a tokenizer, to block ids of any number of tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from .errors import InputError
from .prefix import number_by_first_appearance
from .ragged import pointers
from .trace import Trace


def in_blocks(trace: Trace, block_size: int) -> Trace:
    """A trace of single tokens as one whose nodes stand for `block_size` tokens each.

    The last block of what is known of a request (its prompt, perhaps its answer) may be partial; its node
    is then shared by requests that end alike only.

    Raises:
        InputError: the trace does not know its tokens.
    """
    if trace.granularity != 1:
        raise InputError(f"{trace.name}: expected token ids (prompt_token_ids), found none")
    if block_size < 1:
        raise InputError(f"--block-size {block_size}: expected a whole number of at least 1")
    assert trace.nodes is not None
    assert trace.node_ptr is not None
    assert trace.covered_tokens is not None
    counts = -(-trace.covered_tokens.astype(np.int64) // block_size)
    new_ptr = pointers(counts)
    row = np.repeat(np.arange(len(trace)), counts)
    block_end = (np.arange(new_ptr[-1]) - new_ptr[row] + 1) * block_size
    last_token = np.minimum(block_end, trace.covered_tokens[row]) - 1
    # The node of a block's last token stands for the whole prefix up to it, as the block's is to do.
    blocks = number_by_first_appearance(trace.nodes[trace.node_ptr[row] + last_token])[0]
    return replace(
        trace,
        granularity=block_size,
        node_ptr=new_ptr,
        nodes=blocks,
        num_nodes=int(blocks.max()) + 1,
    )


def tokenizer(name: str) -> Callable[[str], list[int]]:
    """Text to token ids, by a `tokenizer.json` or the name of a model on the Hugging Face hub.

    Raises:
        InputError: the library `tokenizers` is not installed, or has no such tokenizer.
    """
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            "--tokenizer: needs the library tokenizers (pip install tokenizers); token ids do without"
        ) from None
    try:
        found = Tokenizer.from_file(name) if Path(name).is_file() else Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"--tokenizer {name}: cannot be loaded: {str(error).splitlines()[0]}") from None
    return lambda text: found.encode(text).ids


def tokenized(lines: Iterator[bytes], name: str, encode: Callable[[str], list[int]]) -> Iterator[bytes]:
    """Rows with texts `prompt` and, perhaps, `output` as rows of token ids, JSON lines in and out.

    Raises:
        InputError: a row that is no JSON object with a text `prompt`.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row["prompt_token_ids"] = encode(row.pop("prompt"))
            if isinstance(row.get("output"), str):
                row["output_token_ids"] = encode(row.pop("output"))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{name}:{number}: expected a JSON object with a text 'prompt'") from None
        yield json.dumps(row).encode() + b"\n"
