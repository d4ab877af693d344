"""A plan in sentences."""

from __future__ import annotations

from typing import Any

from .compare_rows import percent, seconds

_WHY = {
    "queueing": "requests queue",
    "prefill": "prompts take long to compute",
    "decode": "decoding steps are slow",
    "preemption": "requests are preempted and computed again",
    "rejections": "requests can never fit",
}


def plan_sentences(found: dict[str, Any]) -> list[str]:
    """Return what `plan` found, a sentence or two for each thing that can be said."""
    goals = " and ".join(found["slos"])
    if found["met"]:
        sentences = [f"{_setting(found['answer'])} meets {goals}: {_figures(found['above'])}."]
        if found["below"] is not None:
            sentences.append(f"{_beside(found)} does not: {_figures(found['below'])}.")
        else:
            sentences.append("Nothing harder is in range: it is the least that holds the longest request.")
    else:
        sentences = [f"Nothing in range meets {goals}; the nearest is {_setting(found['nearest'])}."]
        sentences.append(f"There: {_figures(_point(found, found['nearest']))}.")
    if found["why"]:
        sentences.append(_reason(found))
    if not found["monotone"]:
        sentences.append(
            "Not monotone: a harder value meets the objectives that an easier one misses. The answer is the hardest "
            "from which on all that were replayed meet them."
        )
    return sentences


def _reason(found: dict[str, Any]) -> str:
    causes = found["below"]["causes"]
    text = f"{found['binding']} binds, as {_WHY[found['why']]}"
    if not causes:
        return f"{text}."
    parts = [f"{percent(causes[part], 0)} {part}" for part in ("queueing", "prefill", "decode") if part in causes]
    made = f" take so long by {' and '.join(parts)};" if len(parts) > 1 else ":"
    return (
        f"{text}. The {causes['requests']:,} requests beyond the bound{made} {percent(causes['preempted'], 0)} of them "
        "were preempted."
    )


def _beside(found: dict[str, Any]) -> str:
    below = next(point for point in found["points"] if point["value"] == found["below"]["value"])
    return _setting(below["setting"])


def _point(found: dict[str, Any], setting: dict[str, Any]) -> dict[str, Any]:
    return next(point for point in found["points"] if point["setting"] == setting)


def _setting(setting: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in setting.items()
    )


def _figures(point: dict[str, Any]) -> str:
    texts = [f"{goal.partition('<')[0]} {seconds(figure)}" for goal, figure in point["figures"].items()]
    if point["rejected"]:
        texts.append(f"{point['rejected']:,} rejected")
    return f"{', '.join(texts)}, goodput {point['goodput_rps']:.2f} requests/s"
