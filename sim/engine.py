"""The engine as a SimPy process that steps, and every request as a process that comes, waits and ends."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import simpy
from simpy.events import Event, EventPriority

from ..traces.errors import InputError
from .latency import StepTime
from .meter import Meter
from .request import Request
from .scheduler import Scheduler
from .step import Step

Int64 = npt.NDArray[np.int64]

_LAST = EventPriority(2)
"""Event priority: after everything else at the same instant (SimPy's own are 0 and 1)."""

_MOST_STEPS = 4096
"""Steps done in one go at most: keeps the products in the meter within 64 bits."""


_MOST_FRUITLESS = 10_000
"""Preempting steps without a token in between, after which requests are taken to preempt each other for ever."""

_STUCK = (
    "the engine makes no progress from {0:.3f} s on: request {1} and others preempt each other for ever, as vLLM's own "
    "scheduler would; give it more blocks, or set scheduler.scheduler_reserve_full_isl=true"
)


class StepListener(Protocol):
    """Told of every step, in order, whether it was done singly or among many."""

    def scheduled(self, step: Step[Any], scheduler: Scheduler) -> None:
        """`step` was scheduled and has its times; who leaves the decode group by it is still in there."""
        ...

    def treated(self, step: Step[Any], now_ns: int) -> None:
        """The result of `step` was treated at `now_ns`."""
        ...


class Sampler(Protocol):
    """Looks at the state after the first scheduling at or after each of its times."""

    due_ns: int

    def sample(self, now_ns: int, scheduler: Scheduler) -> None:
        """Look, and move `due_ns` on to a later time than `now_ns`."""
        ...


class Clocked(Protocol):
    """Wants to know the time at which blocks are moved."""

    def at(self, now_ns: int) -> None:
        """What happens from here on happens at `now_ns`."""
        ...


class Tick(Event):
    """Wakes the engine after a delay, when everybody else who is due at that instant has had their turn."""

    def __init__(self, env: simpy.Environment, delay: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=_LAST, delay=delay)


class Engine:
    """Runs a scheduler in virtual time (integer ns), synchronously or asynchronously.

    Synchronous: schedule, run, treat the result, and again. Asynchronous: a step is scheduled while the one before it
    runs, as soon as the result of the one before that was treated; the device runs them one after the other.

    Where the steps to come only decode and nobody can come in between, many are done in one go.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: Scheduler,
        step_time: StepTime,
        *,
        async_scheduling: bool,
        fast_forward: bool,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.meter = Meter()
        self.listeners: list[StepListener] = []
        self.sampler: Sampler | None = None
        self.clocked: Clocked | None = None
        self.reactive = False
        """Whether requests may come in answer to the end of others."""
        self.last_ns = 0
        """When the last result was treated."""
        self.preemptions: list[tuple[int, int]] = []
        """When (ns), and whose row."""
        self._step_time = step_time
        self._async = async_scheduling
        self._fast_forward = fast_forward
        self._arrival: Event | None = None
        """While the engine idles: what wakes it."""
        self._awaited: dict[int, tuple[Event, Event]] = {}
        """By request: the events of its first and last token."""
        self._in_flight: Step[Any] | None = None
        """The step that runs while the next one is scheduled (asynchronous scheduling)."""
        self._device_free_ns = 0
        self._fruitless = 0
        """Steps with preemptions since the last that brought a token."""
        self._evicted = 0
        """Blocks evicted up to the last step."""
        self._unsettled = False
        """Whether somebody may have something to do at this instant that the engine must wait for."""
        env.process(self._run())

    def submit(self, request: Request) -> tuple[Event, Event]:
        """Queue a request that arrives now; returns the events of its first and of its last token."""
        events = self._awaited[request.index] = Event(self.env), Event(self.env)
        self.scheduler.add(request)
        if self._arrival is not None:
            self._arrival.succeed()
            self._arrival = None
        return events

    def _run(self) -> Generator[Event, Any, None]:
        env, scheduler = self.env, self.scheduler
        while True:
            fast_forward = self._fast_forward and self._only_decodes()
            # Whoever is still due at this instant comes first, if it matters: those told of an end may send requests,
            # and fast forward looks at when the next event is. Recorded arrivals always came before the last tick.
            if fast_forward or self._unsettled:
                while env.peek() <= env.now:
                    yield Tick(env, 0)
                self._unsettled = False
            step = None
            if scheduler.unfinished:
                step = self._fast_forwarded() if fast_forward else None
                step = step or self._schedule()
            launched = step
            if self._async:
                step, self._in_flight = self._in_flight, step
            if step is not None:
                if step.end_ns > env.now:
                    yield Tick(env, step.end_ns - int(env.now))
                self._treat(step)
            elif launched is None and not scheduler.idle():
                self._arrival = Event(env)
                yield self._arrival
                self._unsettled = True

    def _only_decodes(self) -> bool:
        """Whether the next step seems to be plain, and nothing is in flight that could change that."""
        return self.scheduler.only_decodes() and (self._in_flight is None or self._in_flight.plain)

    def _schedule(self) -> Step[Any] | None:
        scheduler = self.scheduler
        now = int(self.env.now)
        if self.clocked is not None:
            self.clocked.at(now)
        step = scheduler.schedule(now)
        if scheduler.aborted:
            self._abort()
        if step is None:
            return None
        step.duration_ns = self._step_time.step(*scheduler.load(step), step.chunks)
        self._run_on_device(step)
        self.meter.step(step.duration_ns, scheduler.state())
        if self.listeners:
            step.evicted = scheduler.evicted - self._evicted
            step.free = scheduler.free
            for listener in self.listeners:
                listener.scheduled(step, scheduler)
        # What a pass evicts that launches nothing counts for the next step.
        self._evicted = scheduler.evicted
        scheduler.complete(step)
        if step.preempted:
            self.preemptions += [(now, request.index) for request in step.preempted]
        if step.decodes or step.brings:
            self._fruitless = 0
        elif step.preempted:
            self._fruitless += 1
            if self._fruitless > _MOST_FRUITLESS:
                raise InputError(_STUCK.format(now / 1e9, step.preempted[0].index))
        if self.sampler is not None and now >= self.sampler.due_ns:
            self.sampler.sample(now, scheduler)
        return step

    def _abort(self) -> None:
        """Let the processes of requests that were given up end."""
        for request in self.scheduler.aborted:
            first_token, last_token = self._awaited.pop(request.index)
            if not first_token.triggered:
                first_token.succeed()
            last_token.succeed()
        self.scheduler.aborted.clear()

    def _run_on_device(self, step: Step[Any]) -> None:
        start = max(step.time_ns, self._device_free_ns)
        step.end_ns = self._device_free_ns = start + step.duration_ns

    def _treat(self, step: Step[Any]) -> None:
        now = self.last_ns = int(self.env.now)
        if self.clocked is not None:
            self.clocked.at(now)
        if not step.plain:
            self.scheduler.treat(step, now)
            for request in step.firsts:
                self._awaited[request.index][0].succeed()
            for request in step.finishing:
                self._awaited.pop(request.index)[1].succeed()
            self._unsettled = self.reactive
        for listener in self.listeners:
            listener.treated(step, now)

    # -- many steps in one go

    def _fast_forwarded(self) -> Step[Any] | None:
        """Do as many plain steps as there are until something else may happen.

        Returns the last of them, scheduled but not treated, as `_schedule` does; all before it are treated, the time of
        which is the returned step's scheduling. None where there are not at least two: nothing is done then.
        """
        horizon = self.env.peek()
        if self.sampler is not None:
            horizon = min(horizon, self.sampler.due_ns)
        now = int(self.env.now)
        free_at = max(self._device_free_ns, now)
        decoding = self.scheduler.decoding
        members, context = len(decoding), decoding.context
        if now >= horizon:
            return None
        first = self._step_time.step(0, members, context + members)
        second_scheduled = free_at if self._async else free_at + first
        if second_scheduled >= horizon:
            return None
        guess = _MOST_STEPS
        if horizon - free_at < guess * first:
            guess = int((horizon - free_at) // first) + 3
        limit = self.scheduler.plain_steps(guess)
        if limit < 2:
            return None
        durations = self._step_time.decode_steps(members, context, limit)
        ends = free_at + np.cumsum(durations)
        # Step j is scheduled when the one before it ends; asynchronously, when the one before that does.
        ahead = 2 if self._async else 1
        count = min(limit, ahead + int(np.searchsorted(ends, horizon)))
        return self._decode_many(now, durations[:count], ends[:count], free_at) if count > 1 else None

    def _decode_many(self, now: int, durations: Int64, ends: Int64, free_at: int) -> Step[Any]:
        scheduler = self.scheduler
        number, members, count = scheduler.next_step, len(scheduler.decoding), len(durations)
        due = scheduler.due_between(count)
        self.meter.decode_steps(durations, due, members, scheduler.state())
        known = [now, free_at] if self._async else [now]
        # Step j + len(known) is scheduled when step j ends. Asynchronously, the last but one is still waited for.
        told = bool(self.listeners) or self.clocked is not None
        steps = [
            scheduler.step_class(
                number + j,
                known[j] if j < len(known) else int(ends[j - len(known)]),
                int(durations[j]),
                int(ends[j]),
                members,
            )
            for j in range(0 if told else count - len(known), count)
        ]
        if told:
            scheduler.decode_many(count, _TakeByStep(steps, due, scheduler, self.clocked))
            self._tell(steps)
        else:
            scheduler.decode_many(count, scheduler.take)
        self._device_free_ns = steps[-1].end_ns
        self._evicted = scheduler.evicted
        if self._async:
            self._in_flight = steps[-2]
        scheduler.complete(steps[-1])
        return steps[-1]

    def _tell(self, steps: list[Step[Any]]) -> None:
        """Tell the listeners of steps done in one go as if each had been done singly."""
        results = [self._in_flight, *steps] if self._async else steps
        for listener in self.listeners:
            for step, result in zip(steps, results, strict=False):
                listener.scheduled(step, self.scheduler)
                if step is not steps[-1] and result is not None:
                    listener.treated(result, result.end_ns)


class _TakeByStep:
    """Takes the blocks of several steps step by step, noting for each what that did."""

    def __init__(self, steps: list[Step[Any]], due: Int64, scheduler: Scheduler, clocked: Clocked | None) -> None:
        self._steps = steps
        self._due = due
        self._scheduler = scheduler
        self._clocked = clocked

    def __call__(self, count: int) -> Int64:
        scheduler = self._scheduler
        taken: list[Int64] = []
        for step, due in zip(self._steps, self._due.tolist(), strict=True):
            if self._clocked is not None:
                self._clocked.at(step.time_ns)
            evicted = scheduler.evicted
            taken.append(scheduler.take(due))
            step.evicted = scheduler.evicted - evicted
            step.free = scheduler.free
        return np.concatenate(taken)
