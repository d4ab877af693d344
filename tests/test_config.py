"""Configurations: files and `--set`, merged and checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kvreplay.experiments.config import as_tree, engine_capacity, load_settings, to_yaml, with_capacity
from kvreplay.experiments.replay import replay
from kvreplay.sim.settings import AllocatorSettings, LatencySettings, SchedulerSettings, Settings, SimSettings
from kvreplay.traces import InputError, load_trace


def test_nothing_given_is_all_defaults() -> None:
    assert load_settings(None, []) == Settings()


def test_defaults_are_the_promised_ones() -> None:
    tree = as_tree(Settings())
    assert tree["engine"] == "vllm"
    assert tree["allocator"]["kind"] == "block_pool"
    assert tree["allocator"]["block_size"] == 16
    assert tree["allocator"]["prefix_caching"] is True
    assert tree["scheduler"] == {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 131072,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,
        "watermark": 0.0,
        "policy": "fcfs",
        "async_scheduling": True,
    }
    linear = {"base_ns": 5_000_000, "prefill_token_ns": 20_000, "decode_seq_ns": 50_000, "context_token_ns": 20}
    assert tree["latency"].items() >= ({"kind": "linear"} | linear).items()
    assert tree["requests"]["max_new_tokens"] == "recorded"
    assert tree["arrivals"] == {"scale": 1.0, "sessions": "open"}
    assert tree["sim"] == {"fast_forward": True}
    assert tree["seed"] == 0


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("scheduler: {max_num_seqs: 3}\nsim:\n")
    expected = Settings(scheduler=SchedulerSettings(max_num_seqs=3))
    assert load_settings(str(tmp_path / "c.yaml"), []) == expected


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("# nothing yet\n")
    assert load_settings(str(tmp_path / "c.yaml"), []) == Settings()


def test_whole_sections_may_be_set() -> None:
    settings = load_settings(None, ["allocator={num_blocks: 9, block_size: 4}", "allocator.block_size=8"])
    assert settings.allocator == AllocatorSettings(num_blocks=9, block_size=8)


def test_a_whole_number_will_do_where_a_fraction_is_asked() -> None:
    scale = load_settings(None, ["arrivals.scale=2"]).arrivals.scale
    assert (scale, type(scale)) == (2.0, float)


def test_null_takes_back_what_may_be_absent() -> None:
    base = Settings(allocator=AllocatorSettings(num_blocks=9))
    assert load_settings(None, ["allocator.num_blocks=null"], base).allocator.num_blocks is None
    with pytest.raises(InputError, match=r"allocator\.block_size"):
        load_settings(None, ["allocator.block_size=null"])


def test_the_nearest_key_is_suggested() -> None:
    for wrong, right in (
        ("scheduler.max_num_seq", "scheduler.max_num_seqs"),
        ("schedular.watermark", "scheduler.watermark"),
        ("block_size", "allocator.block_size"),
        ("latency.base", "latency.base_ns"),
    ):
        with pytest.raises(InputError, match=f"unknown key .*did you mean {right}") as caught:
            load_settings(None, [f"{wrong}=1"])
        assert "\n" not in str(caught.value)


def test_capacity_comes_from_blocks_then_tokens_then_the_trace() -> None:
    assert engine_capacity(Settings(allocator=AllocatorSettings(num_blocks=7, capacity_tokens=1600)), 800) == 7
    assert engine_capacity(Settings(allocator=AllocatorSettings(capacity_tokens=1615)), 800) == 101
    assert engine_capacity(Settings(), 800) == 51
    with pytest.raises(InputError, match="no KV-cache capacity"):
        engine_capacity(Settings())


def test_the_sample_has_a_capacity_of_its_own_and_settings_win_over_it() -> None:
    trace = load_trace("sample", limit=5)
    assert replay(trace)["config"]["allocator"]["num_blocks"] == 1001
    assert replay(trace, with_capacity(Settings(), 700))["config"]["allocator"]["num_blocks"] == 700
    with pytest.raises(InputError, match="capacity"):
        replay(replace(trace, name="mine"))


SETTINGS = st.builds(
    Settings,
    allocator=st.builds(
        AllocatorSettings,
        block_size=st.integers(1, 128),
        num_blocks=st.none() | st.integers(2, 10**6),
        prefix_caching=st.booleans(),
    ),
    scheduler=st.builds(
        SchedulerSettings,
        max_num_seqs=st.integers(1, 1000),
        watermark=st.floats(0, 0.9),
        policy=st.sampled_from(["fcfs", "priority"]),
        async_scheduling=st.booleans(),
    ),
    latency=st.builds(LatencySettings, base_ns=st.integers(0, 10**9)),
    sim=st.builds(SimSettings, fast_forward=st.booleans()),
    seed=st.integers(0, 1000),
)


@given(SETTINGS)
def test_settings_come_back_from_their_yaml(settings: Settings) -> None:
    assert yaml.safe_load(to_yaml(settings)) == as_tree(settings)
    tree = as_tree(settings)
    assignments = [f"{section}={yaml.safe_dump(tree[section], default_flow_style=True)}" for section in tree]
    assert load_settings(None, [text.replace("\n...", "") for text in assignments]) == settings


@pytest.mark.parametrize("value", [1, 40, 100_000])
def test_a_number_of_new_tokens_is_what_every_request_is_told(value: int) -> None:
    """A request ends at its recorded length, or at the number told if that is smaller."""
    trace = load_trace("sample", limit=50)
    summary = replay(trace, load_settings(None, [f"requests.max_new_tokens={value}"]))
    assert summary["output_tokens"] == sum(min(output, value) for output in trace.output_tokens.tolist())


def test_arrivals_are_divided_by_the_scale() -> None:
    trace = load_trace("sample", limit=200)
    alone = ["latency.base_ns=0", "latency.prefill_token_ns=0", "latency.decode_seq_ns=0", "latency.context_token_ns=0"]
    spans = [
        replay(trace, load_settings(None, [*alone, f"arrivals.scale={scale}"]))["simulated_s"] for scale in (1, 2, 0.5)
    ]
    assert spans[0] == pytest.approx(trace.arrival_ns[-1] / 1e9)
    assert spans[1:] == [pytest.approx(spans[0] / 2), pytest.approx(spans[0] * 2)]
