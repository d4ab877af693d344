"""What is recorded: the engine's settings and the made-up traffic of each recording.

Traffic is drawn from a seed by the rules below and reaches the recording as token ids, so that nobody needs
this file to replay one. Pools are small and arrivals come in bursts: recordings are to be full of evictions,
retractions and chunks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

LULL_NS = 8_000_000_000
"""A pause in which the engine gets empty."""


@dataclass(frozen=True)
class Workload:
    """How the requests of a scenario are drawn. Shares are probabilities; what is left are fresh prompts."""

    requests: int = 220
    gap_ms: float = 120.0
    """Mean time between bursts."""
    burst: int = 4
    """Mean number of requests that come at the same moment."""
    lull_every: int = 90
    """Requests from one long pause to the next."""
    documents: int = 5
    """Openings that prompts may share, each as long as the longest prompt."""
    prompt: tuple[int, int] = (4, 300)
    """Shortest and longest prompt; longer ones arise where a prompt continues an earlier answer."""
    output: tuple[int, int] = (1, 60)
    repeat_share: float = 0.2
    """Exactly the prompt of a recent request."""
    shared_share: float = 0.35
    """A document's opening, then something new."""
    follow_up_share: float = 0.25
    """A recent request's prompt, its whole answer, then something new."""
    whole_pages_share: float = 0.3
    """Prompts cut down to a multiple of `round_to`, where they are long enough."""
    round_to: int = 16
    eos_share: float = 0.0
    """Told a limit beyond the end of the answer."""
    eos_slack: int = 40
    """The most by which that limit exceeds the answer."""
    longest: int = 700
    """No prompt is longer, save those of `too_long`."""
    too_long: tuple[int, ...] = ()
    """Lengths of further fresh prompts, spread over the trace."""


@dataclass
class Drawn:
    """One request as the recorder hands it to the engine."""

    arrival_ns: int
    prompt: list[int]
    output: list[int]
    max_new_tokens: int


@dataclass(frozen=True)
class Scenario:
    """A recording to be made."""

    name: str
    seed: int
    settings: dict[str, Any]
    workload: Workload
    exercises: tuple[str, ...]
    """Events of which the recording has to contain some, by the recorder's names."""


@dataclass
class _Source:
    """The state of a drawing: what later requests can refer to."""

    workload: Workload
    rng: random.Random
    used: int = 0
    documents: list[list[int]] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)

    def __post_init__(self) -> None:
        longest = self.workload.prompt[1]
        self.documents = [self.fresh(longest) for _ in range(self.workload.documents)]

    def fresh(self, count: int) -> list[int]:
        """Token ids that were never used before."""
        self.used += count
        return list(range(self.used - count, self.used))

    def prompt(self) -> list[int]:
        """Draw a prompt's kind, then the prompt."""
        w, rng = self.workload, self.rng
        kind = rng.random()
        recent = self.drawn[-20:]
        if recent and kind < w.repeat_share:
            return list(rng.choice(recent).prompt)
        if kind < w.repeat_share + w.shared_share:
            document = rng.choice(self.documents)
            opening = document[: rng.randint(1, len(document))]
            return self._cut(opening + self.fresh(rng.randint(0, 60)))
        if recent and kind < w.repeat_share + w.shared_share + w.follow_up_share:
            earlier = rng.choice(recent)
            return self._cut(earlier.prompt + earlier.output + self.fresh(rng.randint(1, 30)))
        return self._cut(self.fresh(rng.randint(*w.prompt)))

    def _cut(self, prompt: list[int]) -> list[int]:
        w = self.workload
        del prompt[w.longest :]
        if len(prompt) > w.round_to and self.rng.random() < w.whole_pages_share:
            del prompt[len(prompt) // w.round_to * w.round_to :]
        return prompt

    def request(self, arrival_ns: int, prompt: list[int]) -> Drawn:
        """Draw the rest of a request."""
        w = self.workload
        output = self.fresh(self.rng.randint(*w.output))
        limit = len(output)
        if self.rng.random() < w.eos_share:
            limit += self.rng.randint(1, w.eos_slack)
        return Drawn(arrival_ns, prompt, output, limit)


def draw(workload: Workload, seed: int) -> list[Drawn]:
    """The requests of a workload in arrival order, the same for the same seed."""
    source = _Source(workload, random.Random(seed))
    rng, now = source.rng, 0
    lulls = 0
    too_long = list(workload.too_long)
    apart = workload.requests // (len(too_long) + 1)
    while len(source.drawn) < workload.requests:
        now += round(rng.expovariate(1 / workload.gap_ms) * 1_000_000)
        if len(source.drawn) // workload.lull_every > lulls:
            lulls += 1
            now += LULL_NS
        for _ in range(rng.randint(1, 2 * workload.burst - 1)):
            source.drawn.append(source.request(now, source.prompt()))
        if too_long and len(source.drawn) > apart * (len(workload.too_long) - len(too_long) + 1):
            source.drawn.append(source.request(now, source.fresh(too_long.pop(0))))
    return source.drawn[: workload.requests]


def _settings(**changes: Any) -> dict[str, Any]:
    """A replay's keyword arguments, all of them spelled out."""
    settings: dict[str, Any] = {
        "num_slots": 2000,
        "page_size": 1,
        "chunked_prefill_size": 256,
        "max_prefill_tokens": 512,
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "radix_eviction_policy": "lru",
        "disable_radix_cache": False,
        "disable_overlap_schedule": False,
        "enable_mixed_chunk": False,
        "max_running_requests": None,
        "context_length": 4096,
        "clip_max_new_tokens_estimation": 4096,
    }
    unknown = changes.keys() - settings.keys()
    assert not unknown, unknown
    return settings | changes


CHAT = Workload()
LONG_ANSWERS = Workload(
    prompt=(4, 150), output=(20, 160), gap_ms=250.0, burst=8, requests=110, lull_every=22, longest=400
)
EARLY_ENDS = Workload(
    prompt=(4, 150), output=(1, 100), eos_share=0.7, eos_slack=300, gap_ms=250.0, burst=8, lull_every=30, longest=400
)
LONG_PROMPTS = Workload(prompt=(50, 900), output=(1, 30), longest=1500, gap_ms=150.0, requests=140)
TRICKLE = Workload(prompt=(4, 150), output=(10, 100), eos_share=0.5, gap_ms=60.0, burst=1, requests=120, longest=300)
CROWDS = Workload(prompt=(4, 120), output=(1, 40), burst=20, gap_ms=400.0, requests=300)
COARSE = Workload(prompt=(20, 500), output=(10, 120), round_to=64, longest=1200, burst=8, gap_ms=300.0, lull_every=30)
TINY = Workload(
    prompt=(4, 100), output=(5, 60), longest=240, gap_ms=300.0, documents=2, requests=100, too_long=(290, 303, 289)
)

EAGER = {"schedule_conservativeness": 0.1}
"""Admits on the assumption of short answers: retractions follow."""
RECKLESS = {"schedule_conservativeness": 0.05, "clip_max_new_tokens_estimation": 10}
"""Admits as if all answers were short: retractions all the time."""
BLIND = {"schedule_conservativeness": 0.0, "clip_max_new_tokens_estimation": 0}
"""Admits as if there were no answers."""
SERIAL = {"disable_overlap_schedule": True}

CACHE = ("evictions", "duplicates", "prefix_hits", "answer_hits")
FULL = (*CACHE, "retractions", "readmission_hits")
OVERLAP = ("left_out_of_decodes",)
EOS = ("ended_by_eos", "ended_by_length")

SCENARIOS = (
    Scenario("page1", 1, _settings(), CHAT, (*CACHE, *OVERLAP, "chunks", "touched_prefixes")),
    Scenario("page1_serial", 2, _settings(**SERIAL), CHAT, (*CACHE, "chunks", "touched_prefixes")),
    Scenario("page1_eager", 3, _settings(num_slots=1200, **EAGER), LONG_ANSWERS, (*FULL, *OVERLAP, "chunks")),
    Scenario(
        "page1_reckless",
        4,
        _settings(num_slots=1000, **RECKLESS),
        LONG_ANSWERS,
        (*FULL, *OVERLAP, "skipped_decodes", "touched_prefixes"),
    ),
    Scenario("page1_reckless_serial", 5, _settings(num_slots=1000, **RECKLESS, **SERIAL), LONG_ANSWERS, FULL),
    Scenario("page1_eos", 6, _settings(num_slots=1000, **RECKLESS), EARLY_ENDS, (*FULL, *EOS, *OVERLAP)),
    Scenario("page1_eos_serial", 7, _settings(num_slots=1000, **RECKLESS, **SERIAL), EARLY_ENDS, (*FULL, *EOS)),
    Scenario("page16", 8, _settings(num_slots=1600, page_size=16, **EAGER), LONG_ANSWERS, (*FULL, *OVERLAP)),
    Scenario(
        "page16_reckless",
        9,
        _settings(num_slots=1280, page_size=16, **RECKLESS),
        LONG_ANSWERS,
        (*FULL, *OVERLAP, "skipped_decodes", "touched_prefixes"),
    ),
    Scenario("page16_eos", 10, _settings(num_slots=1280, page_size=16, **RECKLESS), EARLY_ENDS, (*FULL, *EOS)),
    Scenario(
        "page16_eos_serial",
        11,
        _settings(num_slots=1280, page_size=16, **RECKLESS, **SERIAL),
        EARLY_ENDS,
        (*FULL, *EOS),
    ),
    Scenario("page64", 12, _settings(num_slots=3072, page_size=64, **RECKLESS), COARSE, (*FULL, *OVERLAP, "chunks")),
    Scenario(
        "page64_eos_serial",
        13,
        _settings(num_slots=3072, page_size=64, **RECKLESS, **SERIAL),
        replace(COARSE, eos_share=0.6),
        (*FULL, *EOS, "chunks"),
    ),
    Scenario(
        "page1_long_prompts", 14, _settings(num_slots=2400, chunked_prefill_size=128), LONG_PROMPTS, (*CACHE, "chunks")
    ),
    Scenario(
        "page16_long_prompts",
        15,
        _settings(num_slots=2400, page_size=16, chunked_prefill_size=200, **EAGER),
        LONG_PROMPTS,
        (*CACHE, "chunks", "chunks_ending_within_a_page"),
    ),
    Scenario(
        "unchunked", 16, _settings(chunked_prefill_size=-1, max_prefill_tokens=400), LONG_PROMPTS, (*CACHE, *OVERLAP)
    ),
    Scenario("lpm_page1", 17, _settings(schedule_policy="lpm"), CROWDS, (*CACHE, "put_behind_their_prefix")),
    Scenario(
        "lpm_page16_serial",
        18,
        _settings(schedule_policy="lpm", page_size=16, num_slots=1280, **RECKLESS, **SERIAL),
        replace(CROWDS, output=(10, 80)),
        (*FULL, "put_behind_their_prefix"),
    ),
    Scenario(
        "lpm_long_queue",
        19,
        _settings(schedule_policy="lpm", num_slots=1000),
        replace(CROWDS, burst=120, gap_ms=1500.0),
        (*CACHE, "put_behind_their_prefix", "long_queues", "touched_prefixes"),
    ),
    Scenario(
        "mixed_page1",
        20,
        _settings(enable_mixed_chunk=True, num_slots=1000, **RECKLESS),
        EARLY_ENDS,
        (*FULL, *EOS, *OVERLAP, "mixed_batches", "chunks"),
    ),
    Scenario(
        "mixed_page16_serial",
        21,
        _settings(enable_mixed_chunk=True, num_slots=1280, page_size=16, **RECKLESS, **SERIAL),
        EARLY_ENDS,
        (*FULL, *EOS, "mixed_batches", "chunks"),
    ),
    Scenario(
        "mixed_page16",
        2,
        _settings(enable_mixed_chunk=True, num_slots=640, page_size=16, **BLIND),
        TRICKLE,
        (*FULL, *EOS, *OVERLAP, "mixed_batches", "decodes_sitting_out"),
    ),
    Scenario("uncached", 22, _settings(disable_radix_cache=True, **RECKLESS), LONG_ANSWERS, ("retractions", "chunks")),
    Scenario(
        "uncached_page16_serial",
        23,
        _settings(disable_radix_cache=True, page_size=16, num_slots=1280, **RECKLESS, **SERIAL),
        EARLY_ENDS,
        (*EOS, "retractions", "chunks"),
    ),
    Scenario("few_seats", 24, _settings(max_running_requests=5), CROWDS, (*CACHE, "no_seats", "touched_prefixes")),
    Scenario(
        "few_seats_mixed",
        25,
        _settings(max_running_requests=4, enable_mixed_chunk=True, schedule_policy="lpm"),
        CROWDS,
        (*CACHE, "no_seats", "mixed_batches"),
    ),
    Scenario(
        "oversized",
        26,
        _settings(),
        Workload(requests=120, too_long=(1993, 1994, 2500, 1990, 1992), longest=500),
        (*CACHE, "rejected", "cut_short"),
    ),
    Scenario(
        "tiny_page16",
        27,
        _settings(num_slots=320, page_size=16, **EAGER),
        TINY,
        (*CACHE, "retractions", "cut_short", "prefills_with_no_answer_allowed"),
    ),
    Scenario(
        "tiny_page1_serial",
        28,
        _settings(num_slots=320, **EAGER, **SERIAL),
        TINY,
        (*CACHE, "retractions", "cut_short", "idle_with_requests_waiting"),
    ),
    Scenario(
        "short_context", 29, _settings(num_slots=1200, context_length=300, **EAGER), LONG_ANSWERS, (*FULL, "cut_short")
    ),
    *(
        Scenario(
            f"evict_{policy}",
            30 + number,
            _settings(radix_eviction_policy=policy, num_slots=1000, page_size=8 if number % 2 else 1, **RECKLESS),
            replace(EARLY_ENDS, round_to=8, requests=160),
            FULL,
        )
        for number, policy in enumerate(("lfu", "fifo", "mru", "filo", "priority", "slru", "tlru"))
    ),
)
