"""What is recorded: the engine's settings and the made-up traffic of each recording.

Traffic is drawn from a seed by the rules below and reaches the recording as token ids, so that nobody needs
this file to replay one. Pools are small and arrivals come in bursts: recordings are to be full of evictions
and preemptions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

LULL_NS = 10_000_000_000
"""A pause in which any pool gets empty."""


@dataclass(frozen=True)
class Workload:
    """How the requests of a scenario are drawn. Shares are probabilities; what is left are fresh prompts."""

    requests: int = 250
    gap_ms: float = 40.0
    """Mean time between bursts."""
    burst: int = 4
    """Mean number of requests that come at the same moment."""
    lone_share: float = 0.0
    """Bursts replaced by one request long after all others, with a prompt of the full length."""
    documents: int = 6
    """Openings that prompts may share, each as long as the longest prompt."""
    prompt: tuple[int, int] = (8, 320)
    """Shortest and longest prompt; longer ones may arise where a prompt continues an earlier answer."""
    output: tuple[int, int] = (1, 48)
    repeat_share: float = 0.35
    """Exactly the prompt of a recent request."""
    shared_share: float = 0.35
    """A document's opening, then something new or another one's opening: equal blocks, unequal prefixes."""
    follow_up_share: float = 0.0
    """A recent request's prompt, its whole answer, then something new."""
    whole_blocks_share: float = 0.5
    """Prompts cut down to a multiple of `round_to`, where they are long enough."""
    round_to: int = 16
    priorities: int = 1
    eos_share: float = 0.0
    """Told a limit beyond the end of the answer."""
    max_context: int = 400
    """Prompt and answer together, as the engine is told."""


@dataclass
class Drawn:
    """One request as the recorder hands it to the engine."""

    arrival_ns: int
    prompt: list[int]
    output: list[int]
    priority: int
    max_tokens: int


@dataclass(frozen=True)
class Scenario:
    """A recording to be made."""

    name: str
    seed: int
    settings: dict[str, Any]
    workload: Workload
    exercises: tuple[str, ...]
    """Events of which the recording has to contain some, by the recorder's names."""


class _Tokens:
    """Hands out token ids that were never used before."""

    def __init__(self) -> None:
        self.next = 0

    def fresh(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))


@dataclass
class _Source:
    """The state of a drawing: what later requests can refer to."""

    workload: Workload
    rng: random.Random
    tokens: _Tokens = field(default_factory=_Tokens)
    documents: list[list[int]] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)

    def __post_init__(self) -> None:
        longest = self.workload.prompt[1]
        self.documents = [self.tokens.fresh(longest) for _ in range(self.workload.documents)]

    def prompt(self) -> list[int]:
        """Draw a prompt's kind, then the prompt."""
        w = self.workload
        kind = self.rng.random()
        recent = self.drawn[-24:]
        if recent and kind < w.repeat_share:
            return list(self.rng.choice(recent).prompt)
        if kind < w.repeat_share + w.shared_share:
            return self._rounded(self._opening() + self._tail())
        if recent and kind < w.repeat_share + w.shared_share + w.follow_up_share:
            earlier = self.rng.choice(recent[-10:])
            longer = earlier.prompt + earlier.output + self.tokens.fresh(self.rng.randint(1, 24))
            if len(longer) <= w.max_context // 2:
                return longer
        return self._rounded(self.tokens.fresh(self.rng.randint(*w.prompt)))

    def _opening(self) -> list[int]:
        document = self.rng.choice(self.documents)
        return document[: self.rng.randint(1, len(document))]

    def _tail(self) -> list[int]:
        return self._opening() if self.rng.random() < 0.3 else self.tokens.fresh(self.rng.randint(0, 40))

    def _rounded(self, prompt: list[int]) -> list[int]:
        del prompt[self.workload.prompt[1] :]
        if len(prompt) > self.workload.round_to and self.rng.random() < self.workload.whole_blocks_share:
            del prompt[len(prompt) // self.workload.round_to * self.workload.round_to :]
        return prompt

    def request(self, arrival_ns: int, prompt: list[int]) -> Drawn:
        """Draw the rest of a request."""
        w = self.workload
        room = max(1, w.max_context - len(prompt))
        output = self.tokens.fresh(min(room, self.rng.randint(*w.output)))
        limit = len(output)
        if self.rng.random() < w.eos_share:
            limit = min(room, limit + self.rng.randint(1, 20))
        return Drawn(arrival_ns, prompt, output, self.rng.randrange(w.priorities), limit)


def draw(workload: Workload, seed: int) -> list[Drawn]:
    """The requests of a workload in arrival order, the same for the same seed."""
    source = _Source(workload, random.Random(seed))
    rng, now = source.rng, 0
    while len(source.drawn) < workload.requests:
        now += round(rng.expovariate(1 / workload.gap_ms) * 1_000_000)
        if rng.random() < workload.lone_share:
            now += LULL_NS
            source.drawn.append(source.request(now, source.tokens.fresh(workload.prompt[1])))
            now += LULL_NS
            continue
        for _ in range(rng.randint(1, 2 * workload.burst - 1)):
            source.drawn.append(source.request(now, source.prompt()))
    return source.drawn[: workload.requests]


def _settings(asynchronous: bool, **changes: Any) -> dict[str, Any]:
    """A replay's keyword arguments, all of them spelled out."""
    settings: dict[str, Any] = {
        "num_blocks": 64,
        "block_size": 16,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 512,
        "max_model_len": 4096,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,
        "watermark": 0.0,
        "policy": "fcfs",
        "async_scheduling": asynchronous,
        "prefix_caching": True,
    }
    unknown = changes.keys() - settings.keys()
    assert not unknown, unknown
    return settings | changes


PRIORITIES = Workload(priorities=3, gap_ms=60.0)
UNCACHED = Workload(repeat_share=0.1, shared_share=0.1, gap_ms=90.0)
TURNS = Workload(prompt=(8, 120), repeat_share=0.1, shared_share=0.2, follow_up_share=0.5, gap_ms=60.0, max_context=600)
SHORT_ANSWERS = Workload(output=(1, 12), eos_share=0.7)
LONG_ANSWERS = Workload(prompt=(8, 160), output=(20, 100), max_context=10_000, requests=150, gap_ms=100.0)
SINGLE_TOKENS = Workload(prompt=(2, 90), output=(1, 20), requests=200, max_context=120, round_to=1)
COARSE = Workload(prompt=(20, 900), output=(1, 60), round_to=128, max_context=1000, gap_ms=80.0)
GATED = Workload(gap_ms=50.0, lone_share=0.06)
TIGHT = Workload(prompt=(8, 80), output=(20, 90), priorities=3, gap_ms=300.0, requests=150)

MEMORY = ("evictions", "preemptions", "duplicates", "prefix_hits", "readmission_hits")
IN_FLIGHT = ("empty_steps", "stale_preemptions")

SCENARIOS = (
    Scenario("sync_fcfs", 1, _settings(False), Workload(), MEMORY),
    Scenario("async_fcfs", 33, _settings(True), Workload(), (*MEMORY, *IN_FLIGHT, "ended_while_waiting")),
    Scenario(
        "sync_priority",
        3,
        _settings(False, policy="priority"),
        PRIORITIES,
        (*MEMORY, "victims_already_scheduled"),
    ),
    Scenario(
        "async_priority",
        34,
        _settings(True, policy="priority"),
        PRIORITIES,
        (*MEMORY, *IN_FLIGHT, "victims_already_scheduled", "ended_while_waiting"),
    ),
    Scenario(
        "sync_priority_tight",
        38,
        _settings(
            False,
            policy="priority",
            num_blocks=40,
            max_num_seqs=16,
            max_num_batched_tokens=20,
            long_prefill_token_threshold=12,
        ),
        TIGHT,
        (*MEMORY, "victims_already_scheduled", "lone_recomputed_tokens"),
    ),
    Scenario(
        "async_priority_tight",
        41,
        _settings(
            True,
            policy="priority",
            num_blocks=40,
            max_num_seqs=16,
            max_num_batched_tokens=20,
            long_prefill_token_threshold=9,
        ),
        TIGHT,
        (*MEMORY, "victims_already_scheduled", "ended_while_waiting"),
    ),
    Scenario("sync_uncached", 5, _settings(False, prefix_caching=False), UNCACHED, ("preemptions",)),
    Scenario(
        "async_uncached",
        6,
        _settings(True, prefix_caching=False),
        UNCACHED,
        ("preemptions", "stale_preemptions"),
    ),
    Scenario("sync_block1", 7, _settings(False, block_size=1, num_blocks=400), SINGLE_TOKENS, MEMORY),
    Scenario("async_block1", 8, _settings(True, block_size=1, num_blocks=400), SINGLE_TOKENS, MEMORY),
    Scenario("sync_block32", 9, _settings(False, block_size=32, num_blocks=40), Workload(round_to=32), MEMORY),
    Scenario("async_block128", 10, _settings(True, block_size=128, num_blocks=24), COARSE, MEMORY),
    Scenario(
        "sync_gated",
        11,
        _settings(
            False,
            max_num_batched_tokens=200,
            long_prefill_token_threshold=40,
            watermark=0.05,
            scheduler_reserve_full_isl=False,
            max_num_seqs=10,
        ),
        GATED,
        (*MEMORY, "steps_at_max_num_seqs"),
    ),
    Scenario(
        "sync_watermark",
        20,
        _settings(False, watermark=0.7),
        replace(GATED, requests=80),
        ("evictions", "prefix_hits", "duplicates"),
    ),
    Scenario(
        "async_gated",
        12,
        _settings(
            True,
            max_num_batched_tokens=200,
            long_prefill_token_threshold=40,
            watermark=0.05,
            scheduler_reserve_full_isl=False,
            max_num_seqs=10,
        ),
        GATED,
        (*MEMORY, "steps_at_max_num_seqs", "stale_preemptions"),
    ),
    Scenario(
        "sync_max_model_len",
        13,
        _settings(False, max_model_len=192),
        LONG_ANSWERS,
        ("preemptions", "cut_by_max_model_len"),
    ),
    Scenario(
        "async_max_model_len",
        14,
        _settings(True, max_model_len=192),
        LONG_ANSWERS,
        ("preemptions", "cut_by_max_model_len"),
    ),
    Scenario("sync_turns", 15, _settings(False), TURNS, (*MEMORY, "answer_hits", "hits_on_running_turns")),
    Scenario("async_turns", 16, _settings(True), TURNS, (*MEMORY, "answer_hits", "hits_on_running_turns")),
    Scenario("sync_eos", 17, _settings(False, num_blocks=48), SHORT_ANSWERS, (*MEMORY, "ended_by_eos")),
    Scenario(
        "async_eos",
        31,
        _settings(True, num_blocks=48),
        SHORT_ANSWERS,
        (*MEMORY, "ended_by_eos", "ended_while_waiting"),
    ),
)
