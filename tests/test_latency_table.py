"""Tables of measured times: what they hold, how a replay interpolates in them, and which kind `auto` picks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvreplay.experiments.config import load_settings
from kvreplay.experiments.latency_source import with_step_time
from kvreplay.experiments.latency_table import csv_text, read_table, table_from_rows
from kvreplay.experiments.replay import replay
from kvreplay.sim.profile import ProfileStepTime, curve
from kvreplay.sim.request import PoolRequest
from kvreplay.sim.step import Chunk
from kvreplay.traces import InputError, load_trace

ROWS = [
    ("dense", 1, 0, 10.0),
    ("dense", 101, 0, 20.0),
    *[("prefill", tokens, context, tokens * (1 + context / 100)) for tokens in (1, 101) for context in (0, 100)],
    *[("decode", tokens, context, tokens * context / 10) for tokens in (1, 11) for context in (0, 50, 100)],
]
TABLE = table_from_rows(ROWS, "test")


def chunk(computed: int, tokens: int) -> Chunk:
    """A chunk of a prefill."""
    return Chunk(PoolRequest(0, 0, computed + tokens, computed + tokens + 1), computed, tokens, 0)


def test_parts_are_added_up() -> None:
    time = ProfileStepTime(TABLE, 0.0, hidden=True)
    assert time.step(0, 0, 0) == 0
    # 6 requests of 25 tokens on average: dense 10.5 us, decode 6 * 25 / 10 = 15 us.
    assert time.step(0, 6, 150) == 25_500
    # 51 new tokens behind 50: dense at 51 tokens, prefill 51 * 1.5 us.
    assert time.step(51, 0, 101, [chunk(50, 51)]) == 15_000 + 76_500
    assert time.step(51, 6, 251, [chunk(50, 51)]) == 15_600 + 76_500 + 15_000


def test_the_host_as_under_either_scheduling() -> None:
    assert ProfileStepTime(TABLE, 50_000.0, hidden=True).step(0, 1, 0) == 50_000
    assert ProfileStepTime(TABLE, 50_000.0, hidden=False).step(0, 1, 0) == 60_000


def test_beyond_the_ends_lines_go_on_but_not_below_zero() -> None:
    line = curve([10.0, 20.0], [5.0, 25.0])
    assert line.at(30) == 45.0
    assert line.at(0) == 0.0
    assert curve([1.0], [7.0]).at(100) == 7.0


@given(members=st.integers(1, 40), context=st.integers(0, 5000), hidden=st.booleans())
def test_many_decode_steps_are_the_single_ones(members: int, context: int, hidden: bool) -> None:
    time = ProfileStepTime(TABLE, 12_345.0, hidden=hidden)
    single = [time.step(0, members, context + members * (k + 1)) for k in range(8)]
    assert time.decode_steps(members, context, 8).tolist() == single


def test_a_replay_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text(csv_text(ROWS, ["measured by hand"]))
    settings = load_settings(None, ["latency.kind=profile", f"latency.profile={file}"])
    trace = load_trace("sample", limit=50)
    results = [replay(trace, replace(settings, sim=replace(settings.sim, fast_forward=fast))) for fast in (True, False)]
    assert results[0]["step_time"] == {"kind": "profile", "source": str(file)}
    assert results[0]["simulated_s"] == results[1]["simulated_s"]
    assert results[0]["e2e_s"] == results[1]["e2e_s"]


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [list(column) for column in zip(*ROWS, strict=True)]
    names = ("part", "tokens", "context", "time_us")
    pq.write_table(pa.table(dict(zip(names, columns, strict=True))), tmp_path / "table.parquet")
    assert read_table(str(tmp_path / "table.parquet")) == TABLE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("part,tokens\n", "no column context, time_us"),
        ("part,tokens,context,time_us\ndecode,1,1,1\n", "no rows of part dense"),
        ("part,tokens,context,time_us\n# a comment\ndense,1,,-3\n", ":3: time_us: expected a number of at least 0"),
        ("part,tokens,context,time_us\nsparse,1,1,1\n", ":2: part: expected dense, prefill, decode"),
        (
            "part,tokens,context,time_us\ndense,1,,1\ndecode,1,1,1\ndecode,2,2,1\n",
            "part decode: 2 tokens have not the contexts that others have",
        ),
    ],
)
def test_a_wrong_table(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "table.csv"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_table(str(file))
    assert message in str(caught.value)


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"latency.profile: nowhere.csv: cannot be read"):
        read_table("nowhere.csv")


def test_the_roofline_needs_a_model_or_coefficients() -> None:
    with pytest.raises(InputError, match=r"latency.roofline.weights_ns: not set"):
        with_step_time(load_settings(None, ["latency.kind=roofline"]))


def test_the_roofline_of_a_model_can_be_overridden() -> None:
    pair = ["latency.kind=roofline", "model=llama-3.1-8b", "gpu=h100"]
    settings, timing, source = with_step_time(load_settings(None, [*pair, "latency.roofline.token_ns=7"]))
    assert timing is None
    assert settings.latency.roofline.token_ns == 7
    assert source == {"kind": "roofline", "source": "llama-3.1-8b on h100", "set": ["token_ns"]}
    # 15.0 GB of weights at 83 % of 3,350 GB/s, lm head and embedding apart.
    assert settings.latency.roofline.weights_ns == pytest.approx(13.96e9 / (3350 * 0.83), rel=0.01)


def test_auto_without_the_library_is_the_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    settings = load_settings(None, ["latency.kind=auto", "model=llama-3.1-8b", "gpu=h100"])
    settled, timing, source = with_step_time(settings)
    assert settled.latency.kind == "roofline"
    assert timing is None
    assert source is not None
    assert source["not_aic"].startswith("aiconfigurator-core is not installed")
    with pytest.raises(InputError, match=r"latency.kind: aic: aiconfigurator-core is not installed"):
        with_step_time(replace(settings, latency=replace(settings.latency, kind="aic")))


def test_aic_is_what_auto_picks_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiconfigurator_core", reason="needs the extra aic")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = load_settings(None, ["latency.kind=auto", "model=llama-3.1-8b", "gpu=rtx-pro-6000"])
    times = [with_step_time(settings) for _ in range(2)]
    assert [source["kind"] for _, _, source in times if source] == ["aic", "aic"]
    assert len(list((tmp_path / "kvreplay").glob("aic-*.csv"))) == 1
    first, second = (timing.decode_steps(32, 32_000, 4) for _, timing, _ in times if timing is not None)
    np.testing.assert_array_equal(first, second)
    # A decode step of 32 requests with 1,000 tokens each: 13.6 ms of kernels.
    assert 12e6 < first[0] < 15e6
