"""Several setups side by side: which they are, what is measured of them, what is said of their differences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kvreplay.experiments.compare import compare, folder_name
from kvreplay.experiments.compare_rows import entries_per_request
from kvreplay.experiments.compare_words import differences, hit_parts
from kvreplay.experiments.run_data import Run, load_run
from kvreplay.experiments.setups import make_setups
from kvreplay.traces import load_trace
from run_kvreplay import kvreplay


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Both engines as they ship on the first 1,500 requests of the sample."""
    folder = tmp_path_factory.mktemp("both")
    compare(load_trace("sample", limit=1500), out=str(folder))
    return [load_run(folder / name, name) for name in ("vllm", "sglang")]


def test_default_is_both_engines_at_equal_capacity(both: list[Run]) -> None:
    vllm, sglang = both
    assert (vllm.engine, sglang.engine) == ("vllm", "sglang")
    assert vllm.capacity_tokens == sglang.capacity_tokens == 16_000
    assert (vllm.block_size, sglang.block_size) == (16, 1)


def test_tail_waste_is_below_a_block_and_none_for_slots(both: list[Run]) -> None:
    vllm, sglang = both
    assert 0 < vllm.summary["tail_waste"]["tokens_max"] < 16
    assert sglang.summary["tail_waste"] == {"tokens_mean": 0.0, "tokens_max": 0, "share": 0.0}


def test_mapping_is_measured_from_what_requests_held(both: list[Run]) -> None:
    vllm, sglang = both
    table = vllm.requests
    held = table["prompt_tokens"] + table["output_tokens"] - 1 + table["tail_waste_tokens"]
    assert entries_per_request(vllm) == pytest.approx((held / 16).mean())
    assert entries_per_request(sglang) > 15 * entries_per_request(vllm)


def test_parts_of_the_hits_add_up_whichever_way_round(both: list[Run]) -> None:
    vllm, sglang = both
    whole, granularity, rest = hit_parts(vllm, sglang)
    assert whole == pytest.approx(granularity + rest)
    assert granularity >= 0
    assert hit_parts(sglang, vllm) == pytest.approx((-whole, -granularity, -rest))
    assert differences([vllm, vllm])[:-2] == []


def test_granularity_is_what_rounding_takes_away(tmp_path: Path) -> None:
    """One prefix of 70 tokens, memory for everything: pages of 64 lose 6 of them, and no request loses more."""
    rows = [
        {"timestamp": 1000 * row, "prompt_token_ids": [*range(70), 1000 + row, 2000 + row], "output_length": 4}
        for row in range(20)
    ]
    path = tmp_path / "tokens.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = load_trace(path, format="tokens")
    setups = make_setups(None, ["engine=sglang", "allocator.capacity_tokens=8192"], vary=["allocator.page_size=1,64"])
    out = tmp_path / "out"
    compare(trace, {setup.name: setup.settings for setup in setups}, out=str(out))
    fine, coarse = (load_run(out / folder_name(setup.name), setup.name) for setup in setups)
    assert np.array_equal(fine.requests["cached_tokens"][1:] - coarse.requests["cached_tokens"][1:], np.full(19, 6))
    whole, granularity, rest = hit_parts(coarse, fine)
    assert whole == pytest.approx(granularity)
    assert rest == pytest.approx(0)


def test_keys_of_one_engine_apply_where_they_exist() -> None:
    vllm, sglang = make_setups(None, ["scheduler.max_num_seqs=7", "scheduler.schedule_policy=lpm"])
    assert vllm.settings.scheduler.max_num_seqs == 7
    assert sglang.settings.scheduler.schedule_policy == "lpm"


def test_files_and_values_multiply(tmp_path: Path) -> None:
    for name, text in (("a", "engine: vllm"), ("b", "engine: sglang")):
        (tmp_path / f"{name}.yaml").write_text(text)
    files = [str(tmp_path / f"{name}.yaml") for name in "ab"]
    setups = make_setups(None, [], files, ["allocator.block_size=16,32", "allocator.capacity_tokens=4096,8192"])
    assert len({setup.name for setup in setups}) == 8
    assert [setup.settings.engine for setup in setups] == ["vllm"] * 4 + ["sglang"] * 4
    assert setups[-1].settings.allocator.block_size == 32


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vary", "allocator.block_size"], "--vary allocator.block_size: expected"),
        (["--vary", "allocator.block_sizes=16,32"], "did you mean allocator.block_size?"),
        (["--set", "scheduler.no_such=1"], "unknown key scheduler.no_such"),
        (["--vary", "allocator.capacity_tokens=0,99"], "allocator.capacity_tokens: expected"),
        (["--vary", "allocator.block_size=16,48"], "setup block_size=48: allocator.block_size: 48 does not fit"),
        (["--setup", "nowhere.yaml"], "nowhere.yaml: no such file"),
    ],
)
def test_wrong_options_are_one_line(options: list[str], words: str, tmp_path: Path) -> None:
    done = kvreplay("compare", "sample", "--limit", 5, *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_json_has_a_summary_for_each_setup(tmp_path: Path) -> None:
    done = kvreplay("compare", "sample", "--limit", 200, "--json", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [setup["engine"] for setup in found["setups"]] == ["vllm", "sglang"]
    assert {"prefix_hit_rate", "ttft_s", "tail_waste", "config", "wall_s"} <= set(found["setups"][0])
    assert json.loads((tmp_path / "out" / "vllm" / "summary.json").read_text())["completed"] == 200


def test_table_shows_what_the_summaries_hold() -> None:
    done = kvreplay("compare", "sample", "--limit", 200, "--vary", "allocator.block_size=16,64")
    assert done.returncode == 0, done.stderr
    assert "block_size=16" in done.stdout
    assert "block of 64 tokens" in done.stdout
    assert "Tail waste: blocks of 16 waste" in done.stdout
