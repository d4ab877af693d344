"""A seeded generator of chat traffic: bursty or Poisson arrivals, apps with system prompts, sessions."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from .build import build_trace
from .columns import Columns
from .errors import InputError
from .formats import format_named
from .trace import Trace

_BURST_RATE = 4.0
_BURST_SHARE = 0.15
_BURST_SECONDS = 20.0
_DECODE_SECONDS_A_TOKEN = 0.02


@dataclass(frozen=True)
class Synth:
    """What to generate. All lengths are in tokens and log-normal around their means, all times in seconds."""

    seed: int = 0
    duration: float = 3600.0
    requests: int = 5000
    """Expected in the whole duration, but for sessions cut off at its end."""
    arrivals: str = "bursty"
    """`poisson`, or `bursty`: sessions then begin at four times the mean rate for 15 % of the time, in
    bursts of 20 s on average, and at the rest of the rate between."""
    apps: int = 12
    """Applications, each with one system prompt; the k-th is used in proportion to 1/k."""
    system_tokens: float = 800.0
    user_tokens: float = 180.0
    output_tokens: float = 200.0
    turns: float = 2.8
    """Mean number of turns of a session (geometric)."""
    think: float = 30.0
    """Mean time between the end of an answer and the next turn (exponential)."""
    id_tokens: int = 64
    """Tokens a block id stands for."""

    def __post_init__(self) -> None:
        for field in (
            "duration",
            "requests",
            "apps",
            "system_tokens",
            "user_tokens",
            "output_tokens",
            "id_tokens",
        ):
            if not getattr(self, field) > 0:
                raise InputError(f"--{field.replace('_', '-')} {getattr(self, field)}: expected more than 0")
        if self.turns < 1 or self.think < 0:
            raise InputError("--turns must be at least 1 and --think at least 0")
        if self.arrivals not in ("poisson", "bursty"):
            raise InputError(f"--arrivals {self.arrivals}: expected poisson or bursty")


SAMPLE = Synth(seed=1)
"""The built-in trace `sample`."""


def synthesize(what: Synth, name: str = "synth") -> Trace:
    """The trace that `what` describes; the same numbers give the same trace, on every machine."""
    # Only Random.random() is used: its sequence is the same in every Python version.
    rng = Random(what.seed)
    columns = Columns()
    columns.id_tokens = what.id_tokens
    systems = [_length(rng, what.system_tokens, 0.6) for _ in range(what.apps)]
    next_id = 0
    app_ids: list[range] = []
    for length in systems:
        app_ids.append(range(next_id, next_id + length // what.id_tokens))
        next_id = app_ids[-1].stop
    for session, start in enumerate(_session_starts(rng, what)):
        app = _app(rng, what.apps)
        next_id = _add_session(rng, what, columns, session, start, systems[app], app_ids[app], next_id)
    return replace(build_trace(columns, format_named("mooncake").layout, name), notes=())


def _add_session(
    rng: Random,
    what: Synth,
    columns: Columns,
    session: int,
    start: float,
    system: int,
    shared: range,
    next_id: int,
) -> int:
    """Append a session's turns; each prompt holds all that was said before. Returns the next unused id."""
    prompt, now, own = system, start, next_id - len(shared)
    while True:
        prompt += _length(rng, what.user_tokens, 1.0)
        output = _length(rng, what.output_tokens, 0.8)
        blocks = -(-prompt // what.id_tokens)
        ids = [*shared, *range(own + len(shared), own + blocks)]
        columns.append(int(now * 1000) * 10**6, prompt, output)
        columns.append_ids(array("q", ids), prompt)
        columns.session.append(session)
        next_id = own + blocks
        prompt += output
        now += output * _DECODE_SECONDS_A_TOKEN + what.think * _exponential(rng)
        if rng.random() >= 1 - 1 / what.turns or now >= what.duration:
            return next_id


def _session_starts(rng: Random, what: Synth) -> Iterator[float]:
    rate = what.requests / what.turns / what.duration
    fast, slow = rate, rate
    if what.arrivals == "bursty":
        fast, slow = _BURST_RATE * rate, (1 - _BURST_RATE * _BURST_SHARE) / (1 - _BURST_SHARE) * rate
    calm_seconds = _BURST_SECONDS * (1 - _BURST_SHARE) / _BURST_SHARE
    now, burst, switch = 0.0, False, calm_seconds * _exponential(rng)
    while now < what.duration:
        # Exponential gaps have no memory: one that crosses a switch is drawn anew from there.
        later = now + _exponential(rng) / (fast if burst else slow)
        if later < switch:
            now = later
            if now < what.duration:
                yield now
        else:
            now, burst = switch, not burst
            switch = now + (_BURST_SECONDS if burst else calm_seconds) * _exponential(rng)


def _exponential(rng: Random) -> float:
    return -math.log(1.0 - rng.random())


def _length(rng: Random, mean: float, sigma: float) -> int:
    normal = math.sqrt(2 * _exponential(rng)) * math.cos(2 * math.pi * rng.random())
    return max(1, round(mean * math.exp(sigma * normal - sigma * sigma / 2)))


def _app(rng: Random, apps: int) -> int:
    weights = [1 / (k + 1) for k in range(apps)]
    left = rng.random() * sum(weights)
    for app, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return app
    return apps - 1
