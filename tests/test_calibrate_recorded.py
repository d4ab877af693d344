"""The figures of docs/accuracy.md: fitted on the first third, the rest simulated as it was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvreplay.experiments.cli import main
from recorded_runs import recorded_folder

RTX_4090 = "rtx4090_llama-3.1-8b"
RTX_PRO_6000 = "rtxpro6000_llama-3.1-8b"
METRICS = ("ttft_s", "tpot_s", "e2e_s")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*arguments, "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def within(errors: dict[str, Any], mean: float, p99: float) -> None:
    """Check relative errors of all latencies."""
    for metric in METRICS:
        assert abs(errors[metric]["mean"]) <= mean, (metric, errors[metric])
        assert abs(errors[metric]["p99"]) <= p99, (metric, errors[metric])


def test_rtx_4090_fitted_on_the_first_third(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = recorded_folder(RTX_4090), str(tmp_path / "latency.yaml")
    found = run_json(capsys, "calibrate", folder, "--out", out)
    assert found["fitted_requests"] == 100
    assert found["not_fitted"] == 200
    within(found["errors"], mean=0.01, p99=0.02)
    assert found["errors"]["kv_usage_points"] <= 1.5
    # The peer's figures for the whole run: 0.6, 0.2 and 0.5 % of the means.
    within(found["errors_all"], mean=0.006, p99=0.01)
    # What was written says the same to another command.
    again = run_json(capsys, "verify", folder, "-c", out)
    assert again["errors"] == found["errors"]
    assert again["coefficients"] == found["coefficients"]


def test_rtx_pro_6000_fitted_on_the_first_third(capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded_folder(RTX_PRO_6000)
    found = run_json(capsys, "calibrate", folder, "--set", "gpu=rtx-pro-6000")
    within(found["errors"], mean=0.02, p99=0.02)
    assert found["errors"]["kv_usage_points"] is None


@pytest.mark.parametrize(("name", "gpu"), [(RTX_4090, "rtx-4090"), (RTX_PRO_6000, "rtx-pro-6000")])
def test_the_roofline_without_any_fit(capsys: pytest.CaptureFixture[str], name: str, gpu: str) -> None:
    folder = recorded_folder(name)
    arguments = ("--holdout", "0", "--set", "latency.kind=roofline", "--set", f"gpu={gpu}")
    found = run_json(capsys, "verify", folder, *arguments)
    assert abs(found["errors"]["tpot_s"]["mean"]) <= 0.15
    assert found["step_time"]["kind"] == "roofline"


def test_the_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    folder, figure = recorded_folder(RTX_4090), tmp_path / "verify.svg"
    run_json(capsys, "verify", folder, "--set", "latency.kind=roofline", "--figure", str(figure))
    assert figure.read_text().startswith("<?xml")
    assert main(["verify", folder, "--quiet", "--figure", "verify.txt"]) == 2
    assert "expected a name that ends in .png, .svg or .pdf" in capsys.readouterr().err
