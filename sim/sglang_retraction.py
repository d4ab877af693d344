"""SGLang's retraction: running requests give back their memory when a decode batch does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .request import UNSEEN, TreeRequest

if TYPE_CHECKING:
    from .sglang_scheduler import SglangScheduler

_ROOM_STEPS = 20
"""Decode steps for which a retraction makes room."""


def retract(scheduler: SglangScheduler) -> list[TreeRequest]:
    """Retract running requests until the others can decode; returns those retracted, in order.

    First those with the fewest generated tokens, among them those with the longest prompt, among them the last in the
    list; at least one, but not the last one left. If that does not fit either, it is aborted. Nothing of a retracted
    request is published; it keeps its generated tokens and goes to the end of the queue. A token in flight is lost.
    """
    memory = scheduler.memory
    running = list(scheduler.running.values())
    scheduler.decoding.dissolve(scheduler.tick)
    for request in running:
        request.generated = scheduler.seen(request)
    kept = sorted(running, key=lambda request: (request.generated, -request.prompt), reverse=True)
    retracted: list[TreeRequest] = []
    while len(kept) > 1 and (not retracted or not _fits(scheduler, kept)):
        retracted.append(kept.pop())
        _take_away(scheduler, retracted[-1], len(kept))
    if len(kept) == 1 and not _fits(scheduler, kept):
        scheduler.aborted.append(kept[0])
        _take_away(scheduler, kept.pop(), 0)
    scheduler.retake_ratio(kept, _ROOM_STEPS)
    scheduler.rebuild(kept)
    scheduler.waiting.extend(retracted)
    assert memory.free >= 0
    return retracted


def _fits(scheduler: SglangScheduler, requests: list[TreeRequest]) -> bool:
    memory = scheduler.memory
    pages = sum(request.computed % memory.page_size == 0 for request in requests)
    return memory.evict_for(pages * memory.page_size)


def _take_away(scheduler: SglangScheduler, request: TreeRequest, remaining: int) -> None:
    """Free all that a request holds, and make room for those that remain."""
    memory = scheduler.memory
    memory.release(request)
    memory.evict_for(remaining * _ROOM_STEPS)
    request.known = request.prompt + request.generated
    request.lost_pending = request.computed
    request.computed = request.protected = request.published = request.prefix = request.chunks_out = 0
    request.finish_step = UNSEEN
    request.retracted = True
    request.preemptions += 1
    scheduler.active -= 1
