"""`kernels validate`: a right layout passes, and each kind of fault is seen and named."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from kernels_inputs import torch
from kvreplay.experiments.cli import main
from kvreplay.experiments.config import load_settings
from kvreplay.kernels.fingerprint import TokenIdentity, decode, encode, owner
from kvreplay.kernels.ops import TORCH, TRITON, Ops
from kvreplay.kernels.simulated import geometry_of, lengths_of, simulate
from kvreplay.kernels.steps import StepReader
from kvreplay.kernels.validator import Options, Validator
from kvreplay.traces import load_trace

POOL = 180
"""Blocks: so few that requests are preempted and cached blocks evicted."""
EVERY = 1000


@pytest.fixture(scope="module")
def trace():
    return load_trace("sample", limit=40)


@pytest.fixture(scope="module")
def crowd():
    """Arrivals close together, so that many run at once."""
    return load_settings(None, ["arrivals.scale=40", "latency.base_ns=20000000"])


@pytest.fixture(scope="module")
def lines(trace, crowd):
    found = []
    simulate(trace, crowd, POOL, found.append)
    assert any(line["preempted"] for line in found)
    assert any(line["evicted"] for line in found)
    return found


@pytest.fixture
def check(trace, crowd):
    def run(lines, kernels: Ops = TRITON, torch_ops: Ops = TORCH, every: int = EVERY, **options):
        geometry = geometry_of(trace, crowd, POOL)
        validator = Validator(geometry, Options(**options), kernels, torch_ops)
        reader = StepReader(geometry, TokenIdentity(trace), lengths_of(trace), every, validator.run)
        for line in lines:
            reader.feed(line)
        reader.close()
        return validator.finish()

    return run


@pytest.mark.parametrize(("layout", "dtype"), [("packed", "bf16"), ("separate", "fp32")])
def test_a_replay_with_preemptions_and_evictions_passes(check, lines, layout, dtype):
    found = check(lines, dtype=dtype, layout=layout)
    assert found["ok"], found["first_differences"]
    assert found["slots_equal"]
    assert found["fingerprints_wrong"] == 0
    computed = sum(entry[2] for line in lines for entry in line["scheduled"])
    assert found["tokens_written"] == found["slots_checked"] == computed
    assert found["tokens_checked"] > computed
    assert found["prefix_tokens_checked"] > 0
    assert 2 <= found["steps_checked"] <= len(lines) // EVERY + 1


def test_every_step_can_be_looked_at(check, lines):
    found = check(lines[:12], every=1)
    assert found["ok"], found["first_differences"]
    assert found["steps_checked"] == found["batches"] == 12
    assert found["attention_checked"] > 0


def test_merging_steps_changes_no_count(check, lines):
    merged, single = (check(lines[:80], TORCH, every=every) for every in (10**6, 1))
    assert merged["tokens_written"] == single["tokens_written"]
    assert merged["batches"] < single["batches"]


def kinds(found):
    assert not found["ok"]
    return found["differences"]


def admission_beside_another(lines, more_than):
    """The new ids of the first request that is admitted while another, which goes on, got blocks; and one of these."""
    for before, line in pairwise(lines):
        running = {entry[0] for entry in line["scheduled"] if entry[1]}
        for entry in line["scheduled"]:
            if entry[1] == 0 and len(entry[3]) > more_than:
                for other in before["scheduled"]:
                    if other[0] in running and other[3]:
                        return entry[3], other[3][0]
    raise AssertionError("no request is admitted beside another")


def test_a_slot_handed_out_twice_is_seen(check, lines):
    """A block that somebody holds is given to a second request, whose tokens then overwrite the first's."""
    broken = copy.deepcopy(lines)
    new, held = admission_beside_another(broken, more_than=0)
    new[0] = held
    found = check(broken)
    assert kinds(found)["fingerprint"] > 0
    named = next(x for x in found["first_differences"] if x["kind"] == "fingerprint")
    assert named["block"] == named["slot"] // 16 == held
    assert named["step"] >= 0
    assert "expected request" in named["text"]


def test_a_block_taken_back_while_alive_is_seen(check, lines):
    """A request's block is free in the allocator's eyes and serves as somebody's later one; nobody else's moved."""
    broken = copy.deepcopy(lines)
    new, held = admission_beside_another(broken, more_than=3)
    new[-1] = held
    assert kinds(check(broken))["fingerprint"] > 0


def off_by_one(function):
    def shifted(query_start_loc, positions, block_table, slots, block_size):
        function(query_start_loc, positions + 1, block_table, slots, block_size)

    return shifted


def unpadded(function):
    def without_padding(query_start_loc, positions, block_table, slots, block_size):
        count = int(query_start_loc[-1])
        function(query_start_loc, positions, block_table, slots[:count], block_size)

    return without_padding


@pytest.mark.parametrize("where", ["kernels", "torch_ops"])
def test_an_off_by_one_position_is_seen(check, lines, where):
    ops = TRITON if where == "kernels" else TORCH
    found = check(lines[:300], every=100, **{where: replace(ops, slot_mapping=off_by_one(ops.slot_mapping))})
    assert kinds(found)["slot"] > 0
    assert not found["slots_equal"]
    named = next(x for x in found["first_differences"] if x["kind"] == "slot")
    assert named["request"] >= 0
    assert named["slot"] >= 16
    assert "the slot mapping says" in named["text"]


@pytest.mark.parametrize("where", ["kernels", "torch_ops"])
def test_a_missed_padding_is_seen(check, lines, where):
    """The slots left over from a longer step are written with the garbage behind a shorter one."""
    ops = TRITON if where == "kernels" else TORCH
    found = check(lines[:300], every=100, **{where: replace(ops, slot_mapping=unpadded(ops.slot_mapping))})
    assert kinds(found)["padding"] > 0
    assert not found["slots_equal"]
    if where == "torch_ops":
        assert found["fingerprints_wrong"] > 0, "garbage was written over somebody's tokens"


@pytest.mark.parametrize("where", ["kernels", "torch_ops"])
def test_a_stale_table_row_is_seen(check, lines, where):
    """One write in so many to the table is lost: the row keeps the block of whoever had it before."""
    ops = TRITON if where == "kernels" else TORCH
    calls = 0

    def forgetful(table, writes):
        nonlocal calls
        calls += 1
        if calls % (2 if where == "kernels" else 5):
            ops.append_rows(table, writes)

    every = 20 if where == "kernels" else EVERY
    found = check(lines[:800], every=every, **{where: replace(ops, append_rows=forgetful)})
    assert {"slot", "fingerprint"} & kinds(found).keys()
    if where == "kernels":
        assert found["differences"]["table"] > 0


def test_a_write_to_the_null_block_is_seen(check, lines):
    def to_null(key, value, slots, cache):
        TORCH.write_kv(key, value, torch.where(slots == slots.max(), 0, slots), cache)

    found = check(lines[:60], torch_ops=replace(TORCH, write_kv=to_null))
    assert kinds(found)["reserved"] > 0
    assert found["reserved_writes"] > 0
    assert found["differences"]["memory"] > 0


def test_a_kernel_that_writes_elsewhere_is_seen(check, lines):
    def rotated(key, value, slots, cache):
        TORCH.write_kv(key.roll(1, 0), value, slots, cache)

    found = check(lines[:60], every=7, kernels=replace(TRITON, write_kv=rotated))
    assert kinds(found)["fingerprint"] > 0
    text = next(x for x in found["first_differences"] if x["kind"] == "fingerprint")["text"]
    assert text.startswith("reads ")


def test_wrong_attention_is_seen(check, lines):
    def too_flat(query, cache, step, out, scale):
        TORCH.paged_decode(query, cache, step, out, scale * 0.9)

    found = check(lines[:60], every=7, kernels=replace(TRITON, paged_decode=too_flat))
    assert kinds(found) == {"attention": kinds(found)["attention"]}


# -- SGLang


@pytest.fixture(scope="module", params=[1, 16])
def slotted(request, trace):
    """A crowd on so few slots that requests are retracted and leaves evicted; lines, settings and slots."""
    assignments = [f"allocator.page_size={request.param}", "arrivals.scale=60", "latency.base_ns=20000000"]
    settings = load_settings(None, ["engine=sglang", "scheduler.schedule_conservativeness=0.1", *assignments])
    slots = 3040
    found = []
    simulate(trace, settings, slots, found.append)
    assert any(line["preempted"] for line in found)
    assert any(line["evicted"] for line in found)
    assert any(line["rows"] for line in found)
    return found, settings, slots


@pytest.fixture
def check_slots(trace, slotted):
    _, settings, slots = slotted

    def run(lines, kernels: Ops = TRITON, every: int = 2000):
        geometry = geometry_of(trace, settings, slots)
        validator = Validator(geometry, Options(), kernels)
        reader = StepReader(geometry, TokenIdentity(trace), lengths_of(trace), every, validator.run)
        for line in lines:
            reader.feed(line)
        reader.close()
        return validator.finish()

    return run


def test_slots_with_retractions_and_evictions_pass(check_slots, slotted):
    found = check_slots(slotted[0])
    assert found["ok"], found["first_differences"]
    assert found["tokens_written"] == sum(entry[2] for line in slotted[0] for entry in line["scheduled"])
    assert found["prefix_tokens_checked"] > 0


def test_a_wrong_slot_of_a_prefix_hit_is_seen(check_slots, slotted):
    """The row of a request that hits is shifted by one slot: it reads what others wrote."""
    broken = copy.deepcopy(slotted[0])
    first = next(line for line in broken if line["rows"] and line["step"] > 10)
    first["rows"][0][2][0][0] += 1
    assert kinds(check_slots(broken))["fingerprint"] > 0


def test_a_layout_without_rows_cannot_be_followed(check_slots, slotted):
    """Without the slots of its hits, what a request reads is nobody's."""
    bare = [{key: value for key, value in line.items() if key != "rows"} for line in slotted[0]]
    assert not check_slots(bare)["ok"]


def test_a_wrong_allocation_is_seen(check_slots, slotted):
    lines, settings, _ = slotted
    if settings.allocator.block_size == 1:
        pytest.skip("slots one by one need no rule")

    def greedy(prefix_lens, seq_lens, last_slots, free_pages, out, page_size):
        TORCH.alloc_extend(prefix_lens, seq_lens, last_slots, free_pages.flip(0), out, page_size)

    found = check_slots(lines[:3], kernels=replace(TRITON, alloc_extend=greedy), every=1)
    assert kinds(found)["allocation"] > 0


# -- fingerprints


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_fingerprints_survive_every_type(dtype):
    ids = torch.tensor([0, 5, (1 << 47) - 1, 12345 << 24 | 678, -1])
    key, value = encode(ids, 3, dtype)
    assert decode(key, value=False).tolist() == [[x] * 3 for x in ids.tolist()]
    assert decode(value, value=True).tolist() == [[x] * 3 for x in ids.tolist()]
    assert decode(value, value=False).tolist() == [[-1] * 3] * 5, "V is not taken for K"
    assert owner(12345 << 24 | 678) == (12345, 678)
    assert str(owner(-1)) == "nobody's"


def test_fingerprints_are_shared_as_far_as_prefixes(trace):
    identity = TokenIdentity(trace)
    per_node = {}
    for request in range(len(trace)):
        tokens = int(trace.prompt_tokens[request])
        found = identity.of(request, tokens)
        begin = int(trace.node_ptr[request])
        for position in range(0, tokens, trace.granularity):
            node = int(trace.nodes[begin + position // trace.granularity])
            assert per_node.setdefault((node, position), int(found[position])) == found[position]
    assert len(set(per_node.values())) == len(per_node)
    total = int(lengths_of(trace)[3])
    assert len(np.unique(identity.of(3, total))) == total


# -- the command


def test_command_prints_one_object(capsys):
    assert main(["kernels", "validate", "sample", "--limit", "12", "--device", "cpu", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["slots_equal"] is True
    assert found["fingerprints_wrong"] == 0
    assert found["steps_checked"] > 0
    assert found["tokens_checked"] > 0
    assert found["device"] == "cpu"
    assert found["throughput_of"] == "torch on the CPU"
    assert {"append_rows", "gather_rows", "slot_mapping", "write_kv", "gather_kv"} <= found["throughput"].keys()
    assert all(figures["tokens_per_s"] > 0 for figures in found["throughput"].values())


def test_command_prints_a_table_and_writes_its_folder(capsys, tmp_path):
    arguments = ["kernels", "validate", "sample", "--limit", "5", "--every", "50", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--set", "allocator.block_size=1", "--device", "cpu"]) == 0
    assert "every token is in its own slot" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "validate.json").read_text())["block_size"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "--every", "-1"], "--every: expected a number of steps of at least 1, got -1"),
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["sample", "--set", "allocator.blocksize=16"], "did you mean allocator.block_size"),
    ],
)
def test_wrong_options_are_one_line_and_status_2(capsys, arguments, message):
    assert main(["kernels", "validate", *arguments, "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error


def test_without_the_extra_it_says_how_to_install_it(capsys, monkeypatch):
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find_spec(name, *a))
    assert main(["kernels", "validate", "sample"]) == 2
    error = capsys.readouterr().err
    assert error == "error: torch not installed; expected the extra: pip install 'kvreplay[kernels]'\n"
