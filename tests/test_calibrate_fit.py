"""Fitting: known coefficients are found again, slopes are those of small differences, held-out data stay unseen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kvreplay.experiments.calibrate_fit import fit
from kvreplay.experiments.calibrate_replay import replay_recorded
from kvreplay.experiments.calibrate_terms import LinearTerms, RooflineTerms, Terms
from kvreplay.experiments.cli import main
from kvreplay.experiments.config import load_settings
from kvreplay.experiments.verify_errors import compare
from kvreplay.sim.latency_kinds import step_time
from kvreplay.sim.settings import LatencySettings, RooflineSettings
from kvreplay.sim.step import Chunk
from recorded_runs import made_run

LINEAR = LatencySettings("linear", 9_000_000, 70_000, 120_000, 30)
ROOFLINE = RooflineSettings(
    weights_ns=9e6,
    token_ns=70_000.0,
    head_ns=8e5,
    head_seq_ns=5e3,
    decode_context_ns=80.0,
    prefill_pair_ns=3.0,
    window=64,
    window_context_ns=11.0,
    window_pair_ns=2.0,
    experts_ns=3e6,
    expert_share=0.125,
    kernels_ns=4e5,
)


def settings(latency: LatencySettings):
    """A small engine with this step time."""
    return replace(load_settings(None, ["allocator.num_blocks=2001"]), latency=latency)


@pytest.mark.parametrize(
    ("terms", "truth"),
    [
        (LinearTerms(), LINEAR),
        (RooflineTerms(ROOFLINE), RooflineTerms(ROOFLINE).settings(np.array((1.2, 0.8, 1.0, 50_000.0)))),
    ],
    ids=["linear", "roofline"],
)
def test_known_coefficients_are_found_again(terms: Terms, truth: LatencySettings) -> None:
    run = made_run(settings(truth))
    found = fit(run, settings(LatencySettings()), terms, 100)
    replayed = replay_recorded(run, settings(found.latency))
    errors = compare(run, replayed, 100)["errors"]
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        assert abs(errors[metric]["mean"]) < 0.005, metric
        assert abs(errors[metric]["p99"]) < 0.02, metric


@pytest.mark.parametrize(
    ("terms", "values"),
    [
        (LinearTerms(), np.array((9e6, 7e4, 1e5, 3e3))),
        (RooflineTerms(ROOFLINE), np.array((1.1, 0.9, 1.05, 4e4))),
    ],
    ids=["linear", "roofline"],
)
def test_derivatives_are_those_of_small_differences(terms: Terms, values: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    columns = {"prefill_tokens": [], "decode_seqs": [], "context_tokens": [], "decode_context": []}
    columns |= {"prefills": [], "prefill_pairs": [], "prefill_window_pairs": []}
    chunks: list[list[Chunk]] = []
    for _ in range(20):
        decodes, new, computed = (int(value) for value in rng.integers((0, 2, 0), (64, 900, 500)))
        context = decodes * int(rng.integers(1, 400))
        chunks.append([Chunk(None, computed, new, 0)])  # pyright: ignore[reportArgumentType]
        seen = [position + 1 for position in range(computed, computed + new)]
        row = (new, decodes, context + computed + new, context, 1, sum(seen), sum(min(64, place) for place in seen))
        for name, value in zip(columns, row, strict=True):
            columns[name].append(value)
    steps = {name: np.array(column) for name, column in columns.items()}

    def times(at: np.ndarray) -> np.ndarray:
        timing = step_time(settings(terms.settings(at)))
        rows = zip(steps["prefill_tokens"], steps["decode_seqs"], steps["context_tokens"], chunks, strict=True)
        return np.array([timing.step(int(p), int(d), int(c), parts) for p, d, c, parts in rows], float)

    slopes = terms.derivatives(steps, values)
    for column in range(len(values)):
        step = np.zeros(len(values))
        # Coarse enough that rounding to whole nanoseconds, and of coefficients, does not matter.
        step[column] = 0.02 * values[column]
        numeric = (times(values + step) - times(values - step)) / (2 * step[column])
        np.testing.assert_allclose(slopes[:, column], numeric, rtol=0.02, atol=1e-3 * np.abs(numeric).max())


def test_held_out_requests_do_not_matter() -> None:
    run = made_run(settings(LINEAR), 60)
    spoilt = replace(run, first_s=run.first_s.copy(), last_s=run.last_s.copy())
    spoilt.first_s[20:] += 5.0
    spoilt.last_s[20:] += 50.0
    fits = [fit(recorded, settings(LatencySettings()), LinearTerms(), 20) for recorded in (run, spoilt)]
    np.testing.assert_array_equal(fits[0].values, fits[1].values)


def test_a_replay_without_a_recorded_queueing_counts_from_arrival() -> None:
    run = replace(made_run(settings(LINEAR), 60), queued_s=None)
    comparison = compare(run, replay_recorded(run, settings(LINEAR)), 0)
    assert comparison["measured_from"] == "arrival"
    assert comparison["errors"]["e2e_s"]["mean"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--holdout", "1.5"], "--holdout 1.5: expected a share"),
        (["--holdout", "0.99"], "leaves none of 2 requests to fit"),
        (["--kind", "roofline"], "--kind roofline: model and gpu are not both known"),
        (["--set", "allocator.num_blocks=2"], "was served by the real engine but can never fit"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    run = tmp_path / "run.json"
    run.write_text(
        '{"input_lens": [40, 50], "output_lens": [3, 2], "ttfts": [0.1, 0.1], "itls": [[0.1, 0.1], [0.1]],'
        ' "start_times": [0.0, 1.0]}'
    )
    assert main(["calibrate", str(run), "--quiet", *arguments]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert message in errors[0]
