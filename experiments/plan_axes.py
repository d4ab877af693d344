"""What a plan can vary: capacity, load, or a list of values of any key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..sim.settings import Settings
from ..traces.errors import InputError
from ..traces.trace import Trace
from .config import nested, settings_from
from .plan_point import Point, Value, with_capacity_tokens

_LARGEST_FACTOR = 1024


class Axis(Protocol):
    """A setting whose values go from hard to easy for the engine.

    Attributes:
        name: of what is varied.
        start: where the search begins.
    """

    name: str
    start: Value

    def settings(self, value: Value) -> Settings:
        """Return the settings with `value` in them."""
        ...

    def ease(self, value: Value) -> float:
        """Return a number that grows as it gets easier."""
        ...

    def easier(self, point: Point) -> Value | None:
        """Return a value twice as easy, None where that is out of range or cannot help."""
        ...

    def harder(self, point: Point) -> Value | None:
        """Return a value twice as hard, None where that is out of range."""
        ...

    def between(self, hard: Value, easy: Value, count: int) -> list[Value]:
        """Return up to `count` values between two, none where they are close enough."""
        ...

    def answer(self, value: Value) -> dict[str, Value]:
        """Return the value as it is set in a configuration."""
        ...


@dataclass
class Capacity:
    """Blocks (pages) of KV memory; the fewer, the harder."""

    base: Settings
    trace: Trace
    precision: float
    name: str = "num_blocks"

    def __post_init__(self) -> None:
        self._size = self.base.allocator.block_size
        most = int((self.trace.prompt_tokens.astype(int) + self.trace.output_tokens - 1).max())
        # SGLang keeps a page and a token free beside a request, vLLM nothing.
        spare = 1 if self.base.engine == "vllm" else 2
        self.start: Value = -(-most // self._size) + spare

    def settings(self, value: Value) -> Settings:
        return with_capacity_tokens(self.base, int(value) * self._size)

    def ease(self, value: Value) -> float:
        return float(value)

    def easier(self, point: Point) -> Value | None:
        summary = point.summary
        spared = not (summary["evicted_blocks"] or summary["preemptions"]) and summary["kv_usage"]["peak"] < 1
        return None if spared else int(point.value) * 2

    def harder(self, point: Point) -> Value | None:
        return None

    def between(self, hard: Value, easy: Value, count: int) -> list[Value]:
        low, high = int(hard), int(easy)
        if high - low <= max(1, int(self.precision * high)):
            return []
        return sorted({low + (high - low) * step // (count + 1) for step in range(1, count + 1)} - {low, high})

    def answer(self, value: Value) -> dict[str, Value]:
        blocks = int(value)
        if self.base.engine == "sglang":
            return {"num_slots": blocks * self._size, "capacity_tokens": blocks * self._size}
        return {"num_blocks": blocks + 1, "capacity_tokens": blocks * self._size}


@dataclass
class Replicas:
    """Engines of one kind behind a router; the fewer, the harder."""

    base: Settings
    most: int
    name: str = "replicas"
    start: Value = 1

    def settings(self, value: Value) -> Settings:
        return self.base

    def ease(self, value: Value) -> float:
        return float(value)

    def easier(self, point: Point) -> Value | None:
        return min(int(point.value) * 2, self.most) if int(point.value) < self.most else None

    def harder(self, point: Point) -> Value | None:
        return None

    def between(self, hard: Value, easy: Value, count: int) -> list[Value]:
        low, high = int(hard), int(easy)
        return sorted({low + (high - low) * step // (count + 1) for step in range(1, count + 1)} - {low, high})

    def answer(self, value: Value) -> dict[str, Value]:
        return {"replicas": int(value)}


@dataclass
class Load:
    """What arrivals are speeded up by; the more, the harder."""

    base: Settings
    precision: float
    name: str = "arrivals.scale"
    start: Value = 1.0

    def settings(self, value: Value) -> Settings:
        return replace(self.base, arrivals=replace(self.base.arrivals, scale=float(value)))

    def ease(self, value: Value) -> float:
        return -float(value)

    def easier(self, point: Point) -> Value | None:
        return float(point.value) / 2 if float(point.value) > 1 / _LARGEST_FACTOR else None

    def harder(self, point: Point) -> Value | None:
        return float(point.value) * 2 if float(point.value) < _LARGEST_FACTOR else None

    def between(self, hard: Value, easy: Value, count: int) -> list[Value]:
        ratio = float(hard) / float(easy)
        if ratio <= 1 + self.precision:
            return []
        # Three digits are what anybody will set.
        steps = {float(f"{float(easy) * ratio ** (step / (count + 1)):.4g}") for step in range(1, count + 1)}
        return sorted(steps - {float(hard), float(easy)})

    def answer(self, value: Value) -> dict[str, Value]:
        return {"arrivals.scale": float(value)}


class Listed:
    """Values of a key in the order in which they are wanted, the first that will do being the answer."""

    def __init__(self, base: Settings, key: str, values: Sequence[Value]) -> None:
        """Vary `key` over `values`.

        Raises:
            InputError: one of them does not go there, or is there twice.
        """
        if len(set(values)) < len(values):
            raise InputError(f"--vary {key}: each value must be there once")
        self.name = key
        self.values = list(values)
        self.start = self.values[0]
        self._settings = {
            value: settings_from([(nested(key, value), f"--vary {key}")], base, any_engine=True) for value in values
        }

    def settings(self, value: Value) -> Settings:
        return self._settings[value]

    def ease(self, value: Value) -> float:
        return self.values.index(value)

    def easier(self, point: Point) -> Value | None:
        place = self.values.index(point.value) + 1
        return self.values[place] if place < len(self.values) else None

    def harder(self, point: Point) -> Value | None:
        return None

    def between(self, hard: Value, easy: Value, count: int) -> list[Value]:
        return []

    def answer(self, value: Value) -> dict[str, Value]:
        return {self.name: value}
