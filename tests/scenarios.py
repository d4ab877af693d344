"""Random traffic and setups for property tests, and both engines run on them: the naive one and the fast one."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from kvreplay.sim.layout import LayoutLog
from kvreplay.sim.settings import (
    AllocatorSettings,
    ArrivalSettings,
    LatencySettings,
    SchedulerSettings,
    Settings,
    SimSettings,
)
from kvreplay.sim.simulation import Result, Simulation
from kvreplay.traces import Trace
from kvreplay.traces.identity import token_ids
from naive_vllm import NaiveRequest, NaiveResult, NaiveScheduler, _Engine
from token_traces import trace_of_tokens

Line = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """Requests with their tokens, and the setup that is to serve them."""

    arrival_ns: list[int]
    prompts: list[tuple[Hashable, ...]]
    outputs: list[tuple[Hashable, ...]]
    told: list[int]
    """Output limits the server is told; where larger than the output, the request ends by EOS."""
    priority: list[int]
    num_blocks: int
    block_size: int
    prefix_caching: bool
    scheduler: dict[str, Any]
    latency: dict[str, int] = field(default_factory=dict)

    def trace(self) -> Trace:
        """The requests as a trace of single tokens."""
        return trace_of_tokens(self.arrival_ns, self.prompts, self.outputs, self.priority)

    def settings(self, *, fast_forward: bool = True) -> Settings:
        """The setup."""
        return Settings(
            allocator=AllocatorSettings(
                block_size=self.block_size, num_blocks=self.num_blocks, prefix_caching=self.prefix_caching
            ),
            scheduler=SchedulerSettings(**self.scheduler),
            latency=LatencySettings(**self.latency),
            sim=SimSettings(fast_forward=fast_forward),
        )

    def tokens_meant_by(self, trace: Trace) -> Scenario:
        """The same with tokens that are equal exactly where `trace`, another form of the requests, says so."""
        prompts: list[tuple[Hashable, ...]] = []
        outputs: list[tuple[Hashable, ...]] = []
        for row, (prompt, output) in enumerate(zip(trace.prompt_tokens, trace.output_tokens, strict=True)):
            total, covered = int(prompt) + int(output), 0
            tokens: list[Hashable] = []
            if trace.granularity:
                assert trace.covered_tokens is not None
                covered = min(int(trace.covered_tokens[row]), total)
                tokens += token_ids(trace, row, covered).tolist()
            tokens += [("own", row, place) for place in range(covered, total)]
            prompts.append(tuple(tokens[: int(prompt)]))
            outputs.append(tuple(tokens[int(prompt) :]))
        return replace(self, prompts=prompts, outputs=outputs)


# ---------------------------------------------------------------------- both engines


def rejected_rows(scenario: Scenario) -> list[int]:
    """Requests that can never fit, by the rule that users are told."""
    longest = scenario.settings().scheduler.max_model_len
    rows: list[int] = []
    for row, (prompt, output) in enumerate(zip(scenario.prompts, scenario.outputs, strict=True)):
        total = min(len(prompt) + min(len(output), scenario.told[row]), longest)
        too_large = -(-(total - 1) // scenario.block_size) > scenario.num_blocks - 1
        if too_large or len(prompt) >= longest:
            rows.append(row)
    return rows


def naive_engine(scenario: Scenario) -> _Engine:
    """The naive engine with the requests that fit; the others keep their row numbers."""
    settings = scenario.settings()
    requests = [
        NaiveRequest(*parts)
        for parts in zip(
            scenario.arrival_ns, scenario.prompts, scenario.outputs, scenario.priority, scenario.told, strict=True
        )
    ]
    scheduler = NaiveScheduler(
        num_blocks=scenario.num_blocks,
        block_size=scenario.block_size,
        prefix_caching=scenario.prefix_caching,
        **vars(settings.scheduler),
    )
    latency = settings.latency

    def step_ns(prefill: int, decodes: int, context: int) -> int:
        if not prefill and not decodes:
            return 0
        work = latency.prefill_token_ns * prefill + latency.decode_seq_ns * decodes
        return latency.base_ns + work + latency.context_token_ns * context

    engine = _Engine(requests, scheduler, step_ns)
    rejected = set(rejected_rows(scenario))
    engine.pending = deque(live for live in engine.pending if live.row not in rejected)
    return engine


class NeverEndsError(Exception):
    """Two requests preempt each other for ever, which the engine's rules do not exclude."""

    def __init__(self, steps: list[Line]) -> None:
        super().__init__(f"no end after {len(steps)} steps")
        self.steps = steps


def naive_run(scenario: Scenario, most_steps: int = 20_000) -> NaiveResult:
    """What the naive engine makes of it.

    Raises:
        NeverEndsError: it has not come to an end after so many steps.
    """
    engine = naive_engine(scenario)
    schedule = engine._schedule

    def bounded() -> None:
        if len(engine.result.steps) >= most_steps:
            raise NeverEndsError(engine.result.steps)
        schedule()

    engine._schedule = bounded
    return engine.run()


def comes_to_an_end(scenario: Scenario) -> bool:
    """Whether all requests finish; by priority and without reserving, some may preempt each other for ever."""
    scheduler = scenario.settings().scheduler
    if scheduler.policy == "fcfs" or scheduler.scheduler_reserve_full_isl:
        return True
    try:
        naive_run(scenario)
    except NeverEndsError:
        return False
    return True


def simulation_of(scenario: Scenario, trace: Trace, *, fast_forward: bool, sessions: str = "open") -> Simulation:
    """The engine under test, ready to run."""
    settings = replace(scenario.settings(fast_forward=fast_forward), arrivals=ArrivalSettings(sessions=sessions))
    return Simulation(trace, settings, scenario.num_blocks, scenario.told)


def logged_run(simulation: Simulation, most_lines: int | None = None) -> tuple[list[Line], Result]:
    """Run, and return the layout log as well; more lines than `most_lines` end it, for it might never end."""
    lines: list[Line] = []

    def write(line: Line) -> None:
        lines.append(line)
        assert most_lines is None or len(lines) <= most_lines, f"a step too many: {line}"

    simulation.engine.listeners.append(LayoutLog(write))
    result = simulation.run()
    simulation.allocator.check([])
    return lines, result


def assert_same_steps(expected: Sequence[Line], got: Sequence[Line]) -> None:
    """Raise AssertionError that names the first step to differ."""
    for want, have in zip(expected, got, strict=False):
        assert want == have, f"expected {want}\n     got {have}"
    assert len(expected) == len(got)


def assert_same_outcome(expected: NaiveResult, result: Result) -> None:
    """Compare the records of all requests and the free queue."""
    records = result.records
    for name, values in expected.requests().items():
        column = "cached_readmitted" if name == "cached_resumed" else name
        if name == "cached_first":
            values = [max(value, 0) for value in values]  # the naive engine has -1 for the rejected
        assert records[column].tolist() == values, name
    assert result.free_order.tolist() == expected.free_order


# ---------------------------------------------------------------------- figures, from the layout log


@dataclass
class Figures:
    """What the meter and the records add up, from the lines of a layout log."""

    busy_ns: int = 0
    used: int = 0
    used_peak: int = 0
    running: int = 0
    running_peak: int = 0
    held: int = 0
    tokens: int = 0
    tail_waste: dict[int, int] = field(default_factory=dict)
    lost_tokens: dict[int, int] = field(default_factory=dict)


def figures_of(scenario: Scenario, lines: Sequence[Line]) -> Figures:
    """Go through the steps and keep, for every running request, the blocks and tokens it holds."""
    figures = Figures()
    holds: dict[int, tuple[int, int]] = {}
    lost: dict[int, int] = {}
    # A result is seen before the next scheduling, or under asynchronous scheduling before the one after.
    delay = 2 if scenario.settings().scheduler.async_scheduling else 1

    def finish(rows: Sequence[int]) -> None:
        for row in rows:
            blocks, tokens = holds.pop(row, (0, 0))
            figures.tail_waste[row] = blocks * scenario.block_size - tokens

    for number, line in enumerate(lines):
        if number >= delay:
            finish(lines[number - delay]["finished"])
        for row in line["preempted"]:
            lost[row] = holds.pop(row)[1]
        for row, computed, scheduled, new_ids in line["scheduled"]:
            if row not in holds and row in lost:
                figures.lost_tokens[row] = figures.lost_tokens.get(row, 0) + max(lost.pop(row) - computed, 0)
            held = holds.get(row, (0, 0))[0] + len(new_ids)
            holds[row] = held, computed + scheduled
        duration = line["duration_ns"]
        used = scenario.num_blocks - 1 - line["free"]
        figures.busy_ns += duration
        figures.used += used * duration
        figures.used_peak = max(figures.used_peak, used)
        figures.running += len(holds) * duration
        figures.running_peak = max(figures.running_peak, len(holds))
        figures.held += sum(blocks for blocks, _ in holds.values()) * duration
        figures.tokens += sum(tokens for _, tokens in holds.values()) * duration
    for line in lines[-delay:]:
        finish(line["finished"])
    return figures


def assert_same_figures(expected: Figures, result: Result) -> None:
    """Compare the meter's sums and the two columns that the log alone shows."""
    meter = vars(result.meter)
    for name in ("busy_ns", "used", "used_peak", "running", "running_peak", "held", "tokens"):
        assert meter[name] == getattr(expected, name), name
    for name in ("tail_waste", "lost_tokens"):
        column = getattr(expected, name)
        rows = range(len(result.records[name]))
        assert result.records[name].tolist() == [column.get(row, 0) for row in rows], name


# ---------------------------------------------------------------------- drawing them

BLOCK_SIZES = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128)


@st.composite
def lengths(draw: st.DrawFn, block_size: int, most_blocks: int) -> int:
    """A length of at least 1, often at or beside a multiple of the block size."""
    blocks = draw(st.integers(0, most_blocks))
    rest = draw(st.one_of(st.sampled_from([0, 1, -1]), st.integers(0, block_size)))
    return max(blocks * block_size + rest, 1)


@st.composite
def scenarios(
    draw: st.DrawFn, most_requests: int = 12, block_sizes: Sequence[int] = BLOCK_SIZES, **fixed: Any
) -> Scenario:
    """Traffic with shared prefixes, and a setup in which something runs short more often than not.

    `fixed` names options that are not drawn: the scheduler's, and `prefix_caching`.
    """
    caching = fixed.pop("prefix_caching", None)
    block_size = draw(st.sampled_from(block_sizes))
    most_blocks = 6 if block_size <= 16 else 3
    base = draw(st.sampled_from([5_000_000, 10, 0]))
    latency = {"base_ns": base}
    if base != 5_000_000:
        # Round step times: steps and arrivals then meet at the same instant.
        latency |= {
            "prefill_token_ns": draw(st.sampled_from([0, 10])),
            "decode_seq_ns": draw(st.sampled_from([0, 5])),
            "context_token_ns": draw(st.sampled_from([0, 1])),
        }
    unit = base or 10
    gaps = st.sampled_from([0, 0, 0, 1, unit, 3 * unit, 17 * unit, 400 * unit])
    arrival, prompts, outputs, told, priority = [], [], [], [], []
    now = 0
    fresh = iter(range(100, 10**9))
    for _ in range(draw(st.integers(1, most_requests))):
        now += draw(gaps)
        prompt = _draw_prompt(draw, block_size, most_blocks, prompts, outputs, fresh)
        output = _draw_output(draw, block_size, most_blocks, prompt, prompts, outputs, fresh)
        arrival.append(now)
        prompts.append(prompt)
        outputs.append(output)
        told.append(len(output) + draw(st.sampled_from([0, 0, 0, 1, 40])))
        priority.append(draw(st.integers(0, 2)))
    totals = [len(prompt) + len(output) for prompt, output in zip(prompts, outputs, strict=True)]
    largest = -(-(max(totals) - 1) // block_size)
    spare = draw(st.one_of(st.integers(0, 8), st.integers(-2, -1), st.just(sum(totals) // block_size + 1)))
    return Scenario(
        arrival_ns=arrival,
        prompts=prompts,
        outputs=outputs,
        told=told,
        priority=priority,
        num_blocks=max(1 + largest + spare, 2),
        block_size=block_size,
        prefix_caching=draw(st.sampled_from([True, True, True, False])) if caching is None else caching,
        scheduler=_draw_scheduler(draw, block_size, max(totals)) | fixed,
        latency=latency,
    )


def _draw_prompt(
    draw: st.DrawFn, block_size: int, most_blocks: int, prompts: list[Any], outputs: list[Any], fresh: Any
) -> tuple[Hashable, ...]:
    """Perhaps some or all of an earlier request's tokens, its answer included, and perhaps tokens of its own."""
    start: tuple[Hashable, ...] = ()
    if prompts and draw(st.booleans()):
        earlier = draw(st.integers(0, len(prompts) - 1))
        whole = prompts[earlier] + outputs[earlier]
        cut = draw(st.one_of(st.sampled_from([len(whole), len(prompts[earlier])]), st.integers(1, len(whole))))
        start = whole[:cut]
        if len(start) > 2 * most_blocks * block_size:
            start = start[: most_blocks * block_size]
        if draw(st.booleans()):
            return start
    count = draw(lengths(block_size, most_blocks))
    if draw(st.booleans()):
        # The same tokens for everybody.
        return start + tuple(range(count))
    return start + tuple(next(fresh) for _ in range(count))


def _draw_output(
    draw: st.DrawFn,
    block_size: int,
    most_blocks: int,
    prompt: tuple[Hashable, ...],
    prompts: list[Any],
    outputs: list[Any],
    fresh: Any,
) -> tuple[Hashable, ...]:
    """Tokens of its own, or those with which an earlier request went on from the same prompt."""
    count = draw(lengths(block_size, most_blocks))
    seen = [
        whole[len(prompt) :]
        for whole in (a + b for a, b in zip(prompts, outputs, strict=True))
        if len(whole) > len(prompt) and whole[: len(prompt)] == prompt
    ]
    if seen and draw(st.booleans()):
        output = seen[draw(st.integers(0, len(seen) - 1))][:count]
        return output + tuple(next(fresh) for _ in range(count - len(output)))
    return tuple(next(fresh) for _ in range(count))


def _draw_scheduler(draw: st.DrawFn, block_size: int, longest: int) -> dict[str, Any]:
    budgets = [1, 2, 3, 7, max(block_size - 1, 1), block_size, block_size + 1, 3 * block_size, 64, 8192, 8192]
    return {
        "max_num_seqs": draw(st.sampled_from([1, 2, 3, 5, 256, 256])),
        "max_num_batched_tokens": draw(st.sampled_from(budgets)),
        "max_model_len": draw(st.one_of(st.just(131072), st.just(131072), st.integers(2, longest + 1))),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 4, block_size, 2 * block_size + 1])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.05, 0.3])),
        "policy": draw(st.sampled_from(["fcfs", "fcfs", "priority"])),
        "async_scheduling": draw(st.booleans()),
    }


def with_granularity(trace: Trace, granularity: int) -> Trace:
    """A trace of single tokens as one whose ids stand for `granularity` tokens each (0: without identity)."""
    if granularity == 0:
        return replace(trace, granularity=0, node_ptr=None, nodes=None, num_nodes=0, covered_tokens=None)
    from kvreplay.traces.hashing import in_blocks

    return in_blocks(trace, granularity)


def with_covered_prompts(trace: Trace, tokens_more: Sequence[int]) -> Trace:
    """A trace of single tokens that knows only the first tokens of each answer."""
    assert trace.nodes is not None
    assert trace.node_ptr is not None
    totals = trace.prompt_tokens + trace.output_tokens
    covered = np.minimum(trace.prompt_tokens + np.asarray(tokens_more, np.int32), totals).astype(np.int32)
    rows = [
        trace.nodes[start : start + count] for start, count in zip(trace.node_ptr[:-1].tolist(), covered, strict=True)
    ]
    return replace(
        trace,
        nodes=np.concatenate(rows),
        node_ptr=np.concatenate(([0], np.cumsum(covered, dtype=np.int64))),
        covered_tokens=covered,
    )
