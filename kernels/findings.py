"""What a validation counts and what it finds wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .fingerprint import Owner, owner

Int64 = npt.NDArray[np.int64]

MOST_NAMED = 10


class Difference(NamedTuple):
    """One thing that is not as it should be; -1 where a number does not apply."""

    kind: str
    step: int
    request: int
    position: int
    slot: int
    block: int
    text: str

    def __str__(self) -> str:
        places = [f"{name} {value}" for name, value in zip(self._fields[1:6], self[1:6], strict=True) if value >= 0]
        return f"{self.kind}: {', '.join(places)}: {self.text}"


@dataclass
class Findings:
    """Counts, and the first differences."""

    steps_checked: int = 0
    """Looked at closely."""
    batches: int = 0
    tokens_written: int = 0
    tokens_checked: int = 0
    """Fingerprints read back and compared, all ways together."""
    slots_checked: int = 0
    prefix_tokens_checked: int = 0
    """Of them, prefix hits read back by the request that hit."""
    shared_blocks_checked: int = 0
    """Blocks in the tables of several requests of a sampled step, once for each beyond the first."""
    attention_checked: int = 0
    """Outputs (query tokens) compared."""
    attention_error_max: float = 0.0
    """Largest relative error of a sampled step."""
    attention_error_to_torch_max: float = 0.0
    """Largest ratio to the error of torch's attention in the same precision."""
    wrong: dict[str, int] = field(default_factory=dict)
    first: list[Difference] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.wrong

    def add(self, difference: Difference, count: int = 1) -> None:
        """Count `count` differences of a kind, and keep the first few of each kind."""
        before = self.wrong.get(difference.kind, 0)
        self.wrong[difference.kind] = before + count
        if sum(kept.kind == difference.kind for kept in self.first) < MOST_NAMED:
            self.first.append(difference)

    def compare_slots(self, step: int, found: Int64, expected: Int64, requests: Int64, positions: Int64) -> None:
        """Compare a slot mapping with the simulator's slots; what lies behind the tokens must be -1."""
        count = len(requests)
        self.slots_checked += count
        wrong = np.flatnonzero(found[:count] != expected)
        for place in wrong[:MOST_NAMED].tolist():
            text = f"the slot mapping says {found[place]}, the simulator {expected[place]}"
            request, position, slot = (int(x[place]) for x in (requests, positions, expected))
            self.add(Difference("slot", step, request, position, slot, -1, text), 0)
        self._count("slot", len(wrong))
        padding = np.flatnonzero(found[count:] != -1)
        if len(padding):
            place = count + int(padding[0])
            text = f"entry {place} behind the step's {count} tokens is {found[place]}, expected -1"
            self.add(Difference("padding", step, -1, -1, int(found[place]), -1, text), len(padding))

    def compare_fingerprints(
        self, step: int, found: Int64, expected: Int64, requests: Int64, positions: Int64, slots: Int64, size: int
    ) -> None:
        """Compare what was read back with what was written; `size` slots make a block."""
        self.tokens_checked += len(found)
        wrong = np.flatnonzero(found != expected)
        for place in wrong[:MOST_NAMED].tolist():
            read, wanted = owner(int(found[place])), owner(int(expected[place]))
            request, position, slot = (int(x[place]) for x in (requests, positions, slots))
            self.add(Difference("fingerprint", step, request, position, slot, slot // size, _mismatch(read, wanted)), 0)
        self._count("fingerprint", len(wrong))

    def _count(self, kind: str, count: int) -> None:
        if count:
            self.wrong[kind] = self.wrong.get(kind, 0) + count

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "ok": self.ok,
            "steps_checked": self.steps_checked,
            "batches": self.batches,
            "tokens_written": self.tokens_written,
            "tokens_checked": self.tokens_checked,
            "slots_checked": self.slots_checked,
            "slots_equal": not (self.wrong.keys() & {"slot", "padding", "allocation"}),
            "fingerprints_wrong": self.wrong.get("fingerprint", 0),
            "prefix_tokens_checked": self.prefix_tokens_checked,
            "shared_blocks_checked": self.shared_blocks_checked,
            "reserved_writes": self.wrong.get("reserved", 0),
            "attention_checked": self.attention_checked,
            "attention_error_max": self.attention_error_max,
            "attention_error_to_torch_max": self.attention_error_to_torch_max,
            "differences": dict(self.wrong),
            "first_differences": [difference._asdict() for difference in self.first],
        }


def _mismatch(read: Owner, wanted: Owner) -> str:
    return f"reads {read}, expected {wanted}"
