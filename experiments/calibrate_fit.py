"""Fitting a step time to a recorded run: replay, compare when tokens came, correct, and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..sim.settings import LatencySettings, Settings
from .calibrate_recorded import SECOND_NS, Float64, Recorded
from .calibrate_replay import Replayed, replay_recorded
from .calibrate_terms import Terms

_ROBUST = 0.02
"""Relative errors beyond this count by their size and no more by their square: one request preempted in one world and
not in the other should not bend the fit."""
_MOST_ROUNDS = 20
_SMALLEST_TTFT_SHARE = 0.1
"""TTFTs below this share of the mean E2E are weighed as if they were that long: where nobody queues, a TTFT is the
luck of when in a step the request came."""


@dataclass(frozen=True)
class Fit:
    """What was fitted, and how."""

    values: Float64
    latency: LatencySettings
    loss: float
    replays: int
    fitted: int
    """Requests whose recorded times were looked at: the first so many."""
    until_s: float
    """When the last of them had its last token, in seconds from the run's start."""


@dataclass(frozen=True)
class _Trial:
    values: Float64
    residuals: Float64
    slopes: Float64
    loss: float


def fit(
    recorded: Recorded,
    settings: Settings,
    terms: Terms,
    fitted: int,
    progress: Callable[[int, int | None], None] | None = None,
) -> Fit:
    """Fit the coefficients of `terms` to the recorded times of the first `fitted` requests.

    All requests are replayed, since those behind compete with the ones in front; but of the others nothing is used
    save what the client sent and when. Each round replays the run, and solves for the coefficients that would have
    brought the tokens at the recorded times had the schedule stayed the same (Levenberg and Marquardt's damped least
    squares). It is all deterministic.

    Returns:
        The best coefficients that were tried.
    """
    search = _Search(recorded, settings, terms, fitted, progress)
    start = terms.start(float(np.median(_tpot(recorded, fitted))))
    # The size first: all coefficients together, halved or doubled as long as it helps.
    trial = search.best([search.attempt(start * scale) for scale in (0.5, 0.7, 1.0, 1.4, 2.0)])
    damping = 1e-3
    for _ in range(_MOST_ROUNDS):
        better, damping = search.improve(trial, damping)
        if better is None:
            break
        gained, trial = trial.loss - better.loss, better
        if gained < 1e-4 * trial.loss:
            break
    latency = terms.settings(trial.values)
    until = float(recorded.last_s[:fitted].max())
    return Fit(trial.values, latency, trial.loss, search.replays, fitted, until)


class _Search:
    def __init__(
        self,
        recorded: Recorded,
        settings: Settings,
        terms: Terms,
        fitted: int,
        progress: Callable[[int, int | None], None] | None,
    ) -> None:
        self._recorded = recorded
        self._settings = settings
        self._terms = terms
        self._rows = slice(0, fitted)
        self._progress = progress
        self.replays = 0

    def attempt(self, values: Float64) -> _Trial:
        """Replay with these coefficients."""
        settings = replace(self._settings, latency=self._terms.settings(values))
        replayed = replay_recorded(self._recorded, settings)
        self.replays += 1
        if self._progress is not None:
            self._progress(self.replays, None)
        residuals, slopes = self._misfit(replayed, values)
        size = np.abs(residuals)
        loss = np.where(size < _ROBUST, 0.5 * residuals**2, _ROBUST * (size - _ROBUST / 2)).sum()
        return _Trial(values, residuals, slopes, float(loss))

    def best(self, trials: list[_Trial]) -> _Trial:
        return min(trials, key=lambda trial: trial.loss)

    def improve(self, trial: _Trial, damping: float) -> tuple[_Trial | None, float]:
        """Return a trial with a smaller loss, and the damping for the next; None where there seems to be none."""
        weights = 1 / np.maximum(np.abs(trial.residuals) / _ROBUST, 1)
        scale = np.abs(trial.slopes).mean(axis=0) + 1e-300
        slopes = trial.slopes / scale
        curvature = (slopes * weights[:, None]).T @ slopes
        gradient = (slopes * weights[:, None]).T @ trial.residuals
        ridge = np.diag(np.diag(curvature) + 1e-12)
        for _ in range(6):
            step = _nonnegative_step(curvature + damping * ridge, gradient, trial.values * scale)
            new = self.attempt(trial.values + step / scale)
            if new.loss < trial.loss:
                return new, max(damping / 3, 1e-6)
            damping *= 5
        return None, damping

    def _misfit(self, replayed: Replayed, values: Float64) -> tuple[Float64, Float64]:
        """Return relative residuals of TTFT, TPOT and E2E of the fitted requests, and their slopes."""
        recorded, rows = self._recorded, self._rows
        tokens = recorded.trace.output_tokens[rows].astype(float)
        between = np.maximum(tokens - 1, 1)
        first, last = recorded.first_s[rows], recorded.last_s[rows]
        elapsed = np.cumsum(self._terms.derivatives(replayed.steps, values), axis=0) / SECOND_NS
        start = elapsed[_at_arrival(replayed, rows)]
        early, late = elapsed[replayed.first_step[rows]] - start, elapsed[replayed.last_step[rows]] - start
        end_to_end = float((last - recorded.start_s[rows]).mean())
        ttft = max(float((first - recorded.start_s[rows]).mean()), _SMALLEST_TTFT_SHARE * end_to_end)
        tpot = max(float(((last - first) / between)[tokens > 1].mean()), 1e-9)
        new_first, new_last = replayed.first_s[rows], replayed.last_s[rows]
        residuals = (
            (first - new_first) / ttft,
            ((last - first) - (new_last - new_first)) / between / tpot,
            (last - new_last) / end_to_end,
        )
        slopes = (early / ttft, (late - early) / between[:, None] / tpot, late / end_to_end)
        expected, expected_slopes = self._terms.expected(values)
        return np.concatenate((*residuals, expected)), np.concatenate((*slopes, expected_slopes))


def _nonnegative_step(curvature: Float64, gradient: Float64, values: Float64) -> Float64:
    """Solve `curvature @ step = gradient`, keeping `values + step` at or above 0: who would go below, goes to 0."""
    step = -values.copy()
    free = np.ones(len(values), np.bool_)
    while free.any():
        fixed = ~free
        rest = gradient[free] - curvature[np.ix_(free, fixed)] @ -values[fixed]
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], rest)
        below = free & (values + step < 0)
        if not below.any():
            break
        step[below] = -values[below]
        free &= ~below
    return step


def _at_arrival(replayed: Replayed, rows: slice) -> npt.NDArray[np.int64]:
    """Return the step from which on slower steps would have delayed each request, int64 [rows].

    It is the last one scheduled before the request came that left nobody waiting. Whoever finds no queue waits for
    the step that runs, however late that is; whoever finds one waits as long as the queue has grown to be.
    """
    steps = np.arange(len(replayed.steps["waiting"]))
    emptied = np.maximum.accumulate(np.where(replayed.steps["waiting"] == 0, steps, 0))
    arrival = np.rint(replayed.arrival_s[rows] * SECOND_NS)
    seen = np.searchsorted(replayed.steps["scheduled_ns"], arrival, side="right") - 1
    return emptied[np.maximum(seen, 0)]


def _tpot(recorded: Recorded, fitted: int) -> npt.NDArray[np.float64]:
    tokens = recorded.trace.output_tokens[:fitted]
    several = tokens > 1
    between = (tokens - 1)[several]
    return (recorded.last_s - recorded.first_s)[:fitted][several] / between if several.any() else np.array([0.03])
