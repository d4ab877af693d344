"""`kernels bench` on a CPU: it measures torch, says so, and holds what it finds against ceilings of the same run."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from kernels_inputs import torch
from kvreplay.experiments.cli import main
from kvreplay.experiments.config import load_settings
from kvreplay.kernels.meter import Meter
from kvreplay.kernels.snapshot import fullest
from kvreplay.kernels.stopwatch import Stopwatch
from kvreplay.traces import load_trace
from kvreplay.traces.errors import InputError


@pytest.fixture(scope="module")
def trace():
    return load_trace("sample", limit=40)


def settings(*assignments: str):
    return load_settings(None, ["arrivals.scale=1000000.0", *assignments])


def test_a_snapshot_is_fragmented_and_its_fresh_twin_is_not(trace):
    found = fullest(trace, settings("allocator.block_size=16"), 500).unshared()
    fresh = found.fresh()
    assert found.seq_lens.tolist() == fresh.seq_lens.tolist()
    assert fresh.consecutive == 1.0
    assert 0 < found.consecutive < 1.0
    used = np.concatenate(fresh.rows)
    assert len(np.unique(used)) == len(used)
    assert used.min() == 1
    assert used.max() < 500
    assert found.table.shape == (len(found.rows), max(map(len, found.rows)))
    for row, tokens in zip(found.rows, found.seq_lens.tolist(), strict=True):
        assert (len(row) - 1) * 16 < tokens <= len(row) * 16


def test_a_pool_that_never_evicts_gives_no_layout(trace):
    with pytest.raises(InputError, match="nothing was evicted"):
        fullest(trace, settings(), 100_000)


def test_command(capsys, tmp_path):
    out = tmp_path / "out"
    arguments = ["kernels", "bench", "sample", "--limit", "60", "--device", "cpu", "--json", "--quiet"]
    assert main([*arguments, "--block-sizes", "16", "--capacity-tokens", "8192", "--out", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured"] == "torch on the CPU"
    assert found["device"] == "cpu"
    assert found["ceilings"]["copy_gb_per_s"] > 0
    assert found["ceilings"]["matmul_tflop_per_s"] > 0
    operations = {"slot mapping", "write K and V", "gather K and V", "decode attention", "prefill attention"}
    seen = {(row["operation"], row["block_size"], row["layout"]) for row in found["rows"]}
    layouts = ("fragmented", "fresh")
    assert seen == {(name, size, layout) for name in operations for size in (16, "per-token") for layout in layouts}
    for row in found["rows"]:
        assert "triton" not in row["by"], "the interpreter is never timed"
        assert row["seconds"] > 0
        reached = row["tflop_per_s"] * 1e12 if row["ceiling"] == "matmul" else row["gb_per_s"] * 1e9
        ceiling = found["ceilings"]["matmul_tflop_per_s"] * 1e12
        if row["ceiling"] == "copy":
            ceiling = found["ceilings"]["copy_gb_per_s"] * 1e9
        assert math.isclose(row["share_of_ceiling"], reached / ceiling)
    table = pq.read_table(out / "bench.parquet")
    assert table.num_rows == len(found["rows"])
    assert json.loads((out / "bench.json").read_text()) == found
    figure = ElementTree.parse(out / "bench.svg").getroot()
    assert figure.tag.endswith("svg")
    assert "decode attention" in (out / "bench.svg").read_text()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--block-sizes", "16,big", "--block-sizes: expected whole numbers of 1 to 256, got '16,big'"),
        ("--block-sizes", "512", "--block-sizes: expected whole numbers of 1 to 256, got '512'"),
        ("--capacity-tokens", "10", "--capacity-tokens: expected at least 1024, got 10"),
    ],
)
def test_wrong_options_are_one_line_and_status_2(capsys, option, value, message):
    assert main(["kernels", "bench", "--device", "cpu", option, value]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_meter_adds_up_and_can_be_off():
    meter = Meter(torch.device("cpu"))
    for _ in range(2):
        with meter.timed("write", 10, 400):
            pass
    meter.enabled = False
    with meter.timed("write", 1000, 1000):
        pass
    found = meter.figures()["write"]
    assert (found["tokens"], found["bytes"]) == (20, 800)
    assert math.isclose(found["bytes_per_s"], 800 / found["seconds"])


def test_a_median_is_of_several_calls():
    calls = []
    assert Stopwatch(torch.device("cpu"), most_seconds=0.0).median(lambda: calls.append(1)) >= 0
    assert len(calls) == 5
