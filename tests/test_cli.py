"""The program from outside: what it prints, where, and its exit status."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from kvreplay.experiments.cli import COMMANDS
from run_kvreplay import PROGRAM, environment, kvreplay

ROW = '{"timestamp": %d, "input_length": %d, "output_length": 20, "hash_ids": [%s]}\n'
GOOD = "".join(ROW % (100 * row, 600 + row, f"0, {row + 1}") for row in range(20))
"""A small Mooncake trace: ids of 512 tokens, a shared first block."""
ROOM = ("--set", "allocator.num_blocks=400")
SPREADS = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
COUNTS = (
    "requests",
    "completed",
    "rejected",
    "steps",
    "prompt_tokens",
    "output_tokens",
    "cached_prompt_tokens",
    "evicted_blocks",
    "preemptions",
)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """The path of a trace in which nothing is wrong."""
    path = tmp_path / "good.jsonl"
    path.write_text(GOOD)
    return path


@pytest.fixture(scope="module")
def sample() -> subprocess.CompletedProcess[str]:
    """`replay sample --json`, all of it."""
    return kvreplay("replay", "sample", "--json")


def without_times(text: str) -> dict[str, Any]:
    """A printed summary without what differs from run to run."""
    summary = json.loads(text)
    del summary["wall_s"], summary["cpu_s"]
    return summary


def assert_wrong_input(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One `error: ` line that has all of `words`, nothing on stdout, status 2."""
    assert done.stdout == ""
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith("\n")
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr, (word, done.stderr)


# ---------------------------------------------------------------------- what is printed


def test_json_is_one_object_on_stdout_and_nothing_else(sample: subprocess.CompletedProcess[str]) -> None:
    assert sample.returncode == 0
    assert sample.stderr == ""
    assert sample.stdout.count("\n") == 1
    assert isinstance(json.loads(sample.stdout), dict)


def test_json_has_every_promised_key_and_type(sample: subprocess.CompletedProcess[str]) -> None:
    summary = json.loads(sample.stdout)
    for name in ("engine", "allocator", "trace"):
        assert type(summary[name]) is str
    for name in COUNTS:
        assert type(summary[name]) is int, name
    for name in ("simulated_s", "wall_s", "cpu_s", "prefix_hit_rate"):
        assert type(summary[name]) is float, name
    for name in SPREADS:
        assert list(summary[name]) == ["mean", "p50", "p90", "p95", "p99", "max"]
        assert all(type(value) is float for value in summary[name].values())
    assert set(summary["kv_usage"]) == set(summary["running"]) == {"mean", "peak"}
    assert set(summary["tail_waste"]) == {"tokens_mean", "tokens_max", "share"}
    assert set(summary["config"]) >= {"engine", "allocator", "scheduler", "latency", "requests", "arrivals", "sim"}


def test_the_sample_gives_sane_figures(sample: subprocess.CompletedProcess[str]) -> None:
    summary = json.loads(sample.stdout)
    assert (summary["engine"], summary["allocator"], summary["trace"]) == ("vllm", "block_pool", "sample")
    assert summary["requests"] == summary["completed"] == 5318
    assert summary["rejected"] == 0
    assert 0 < summary["prefix_hit_rate"] < 1
    assert summary["prefix_hit_rate"] == pytest.approx(summary["cached_prompt_tokens"] / summary["prompt_tokens"])
    assert 0 < summary["kv_usage"]["mean"] < summary["kv_usage"]["peak"] <= 1
    for name in SPREADS:
        figures = summary[name]
        assert 0 <= figures["p50"] <= figures["p90"] <= figures["p95"] <= figures["p99"] <= figures["max"]


def test_table_has_a_line_for_each_figure() -> None:
    done = kvreplay("replay", "sample", "--limit", 200)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("requests", "simulated", "prefix hits", "evicted", "preemptions", "tail waste", "TTFT", "TPOT", "E2E"):
        assert name in done.stdout
    assert "200 completed" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_subcommand_has_help(command: str) -> None:
    done = kvreplay(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: kvreplay " + command)


@pytest.mark.parametrize("command", ["info", "convert", "synth", "fetch", "hash"])
def test_every_trace_subcommand_has_help(command: str) -> None:
    done = kvreplay("trace", command, "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_help_names_every_subcommand() -> None:
    done = kvreplay("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)


def test_replay_help_names_every_promised_option() -> None:
    text = kvreplay("replay", "--help").stdout
    for option in ("--config", "--set", "--limit", "--json", "--out", "--quiet", "--layout-log", "--perfetto"):
        assert option in text
    for option in ("--format", "--time-unit", "--id-tokens"):
        assert option in text


# ---------------------------------------------------------------------- wrong input

BAD_ROWS = {
    "cut short": ('{"timestamp": 5, "input_length": 6', ("bad.jsonl:3",)),
    "negative length": ('{"timestamp": 5, "input_length": -6, "output_length": 1, "hash_ids": [1]}', ("input_length",)),
    "a string": ('{"timestamp": 5, "input_length": "6", "output_length": 1, "hash_ids": [1]}', ("input_length",)),
    "a missing field": ('{"timestamp": 5, "input_length": 6, "hash_ids": [1]}', ("output_length",)),
    "no object": ("[1, 2, 3]", ("bad.jsonl:3",)),
    "not text": ("\udcff\udcfe", ("bad.jsonl:3",)),
    "a NaN": ('{"timestamp": NaN, "input_length": 6, "output_length": 1, "hash_ids": [1]}', ("timestamp",)),
}


@pytest.mark.parametrize("what", BAD_ROWS)
def test_a_bad_row_is_named_by_file_and_line(what: str, tmp_path: Path) -> None:
    row, words = BAD_ROWS[what]
    rows = GOOD.splitlines()[:2]
    text = "\n".join([*rows, row, *rows]) + "\n"
    (tmp_path / "bad.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert_wrong_input(kvreplay("replay", tmp_path / "bad.jsonl", *ROOM), "bad.jsonl:3", *words)


def test_a_missing_trace_is_named() -> None:
    assert_wrong_input(kvreplay("replay", "nowhere.jsonl", *ROOM), "nowhere.jsonl", "sample")


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    assert_wrong_input(kvreplay("replay", tmp_path, *ROOM), str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x1f\x8b"])
def test_an_empty_trace(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(content)
    assert_wrong_input(kvreplay("replay", tmp_path / "empty.jsonl", *ROOM), "empty.jsonl")


def test_a_trace_of_unknown_format(tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"when": 1, "size": 3}\n')
    assert_wrong_input(kvreplay("replay", tmp_path / "odd.jsonl", *ROOM), "odd.jsonl", "mooncake", "--mapping")


def test_a_compressed_trace_cut_short(tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(GOOD.encode())[:-30])
    assert_wrong_input(kvreplay("replay", tmp_path / "cut.jsonl.gz", *ROOM), "cut.jsonl.gz")


SETTINGS = {
    "scheduler.max_num_seq=4": ("scheduler.max_num_seq", "did you mean scheduler.max_num_seqs?"),
    "allocator.blocks_num=4": ("allocator.blocks_num", "allocator.num_blocks"),
    "max_num_seqs=4": ("scheduler.max_num_seqs",),
    "scheduler.max_num_seqs=many": ("scheduler.max_num_seqs", "whole number", "many"),
    "scheduler.max_num_seqs=1.5": ("scheduler.max_num_seqs", "whole number"),
    "scheduler.max_num_seqs=true": ("scheduler.max_num_seqs", "whole number"),
    "scheduler.max_num_seqs=0": ("scheduler.max_num_seqs", "at least 1"),
    "scheduler.async_scheduling=1": ("scheduler.async_scheduling", "true or false"),
    "scheduler.policy=lifo": ("scheduler.policy", "fcfs", "priority"),
    "scheduler=4": ("scheduler",),
    "allocator.num_blocks=1": ("allocator.num_blocks", "from 2"),
    "allocator.num_blocks=[1]": ("allocator.num_blocks",),
    "arrivals.scale=0": ("arrivals.scale", "above 0"),
    "arrivals.scale=.nan": ("arrivals.scale",),
    "requests.max_new_tokens=0": ("requests.max_new_tokens",),
    "engine=trt": ("engine", "vllm"),
    "latency.base_ns": ("latency.base_ns", "key.path=value"),
    "=3": ("key.path=value",),
    "scheduler.policy={": ("not valid YAML",),
    "scheduler.watermark=-0.1": ("scheduler.watermark",),
}


@pytest.mark.parametrize("assignment", SETTINGS)
def test_a_wrong_setting_is_named_with_what_would_be_right(assignment: str, good: Path) -> None:
    assert_wrong_input(kvreplay("replay", good, *ROOM, "--set", assignment), *SETTINGS[assignment])


CONFIGS = {
    "invalid": ("scheduler: {max_num_seqs: 4\nallocator: 3\n", ("c.yaml:", "not valid YAML")),
    "unknown key": ("scheduler:\n  max_nun_seqs: 4\n", ("c.yaml", "scheduler.max_nun_seqs", "scheduler.max_num_seqs")),
    "unknown section": ("shceduler:\n  max_num_seqs: 4\n", ("c.yaml", "shceduler")),
    "wrong type": ("scheduler:\n  max_num_seqs: four\n", ("c.yaml", "scheduler.max_num_seqs", "'four'")),
    "no mapping": ("- 1\n- 2\n", ("c.yaml",)),
    "tabs": ("scheduler:\n\tmax_num_seqs: 4\n", ("c.yaml:2", "not valid YAML")),
    "not text": ("\udcff\udcfe", ("c.yaml",)),
}


@pytest.mark.parametrize("what", CONFIGS)
def test_a_wrong_configuration_file(what: str, good: Path, tmp_path: Path) -> None:
    text, words = CONFIGS[what]
    (tmp_path / "c.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert_wrong_input(kvreplay("replay", good, *ROOM, "-c", tmp_path / "c.yaml"), *words)


def test_a_missing_configuration_file(good: Path) -> None:
    assert_wrong_input(kvreplay("replay", good, "-c", "nowhere.yaml"), "nowhere.yaml")


def test_no_capacity_given(good: Path) -> None:
    assert_wrong_input(kvreplay("replay", good), "allocator.num_blocks", "allocator.capacity_tokens")


def test_less_capacity_than_a_block(good: Path) -> None:
    done = kvreplay("replay", good, "--set", "allocator.capacity_tokens=15")
    assert_wrong_input(done, "allocator", "capacity", "15", "16")


def test_a_block_size_that_does_not_go_with_the_trace_s(good: Path) -> None:
    done = kvreplay("replay", good, *ROOM, "--set", "allocator.block_size=48")
    assert_wrong_input(done, "allocator.block_size", "48", "512", "64")


OPTIONS = {
    "unknown option": (("--colour",), ("--colour",)),
    "no value": (("--limit",), ("--limit",)),
    "no number": (("--limit", "all"), ("--limit", "all")),
    "limit of nothing": (("--limit", "0"), ("--limit",)),
    "unknown format": (("--format", "csv2"), ("--format", "csv2", "mooncake")),
    "unknown unit": (("--time-unit", "weeks"), ("--time-unit", "weeks", "ms")),
    "format and mapping": (("--format", "mooncake", "--mapping", "m.yaml"), ("--format", "--mapping")),
    "another trace": (("another.jsonl",), ("another.jsonl",)),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_a_wrong_option(what: str, good: Path) -> None:
    options, words = OPTIONS[what]
    assert_wrong_input(kvreplay("replay", good, *ROOM, *options), *words)


def test_an_unknown_subcommand_lists_those_there_are() -> None:
    assert_wrong_input(kvreplay("repaly", "sample"), "repaly", "replay", "trace")


def test_no_subcommand() -> None:
    assert_wrong_input(kvreplay(), "COMMAND")


def test_no_trace() -> None:
    assert_wrong_input(kvreplay("replay"), "TRACE")


@pytest.mark.parametrize("option", ["--out", "--layout-log", "--perfetto"])
def test_a_place_that_cannot_be_written(option: str, good: Path) -> None:
    done = kvreplay("replay", good, *ROOM, option, good / "below" / "a" / "file")
    assert_wrong_input(done, str(good))


# ---------------------------------------------------------------------- options that work


def test_requests_that_can_never_fit_are_named_and_the_rest_runs(tmp_path: Path) -> None:
    rows = GOOD.splitlines(keepends=True)
    rows[3] = ROW % (300, 5000, ", ".join(map(str, range(50, 60))))
    (tmp_path / "t.jsonl").write_text("".join(rows))
    done = kvreplay("replay", tmp_path / "t.jsonl", "--set", "allocator.num_blocks=100", "--json")
    summary = json.loads(done.stdout)
    assert done.returncode == 0
    assert (summary["completed"], summary["rejected"], summary["rejected_requests"]) == (19, 1, [3])
    assert "rejected: request 3 " in done.stderr
    assert "never fit" in done.stderr


def test_quiet_says_nothing_but_the_result(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(GOOD)
    done = kvreplay("replay", tmp_path / "t.jsonl", "--set", "allocator.num_blocks=3", "--quiet", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rejected"] == 20


def test_set_wins_over_the_file_and_later_ones_over_earlier(good: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("allocator: {num_blocks: 500}\nscheduler: {max_num_seqs: 7, watermark: 0.1}\n")
    options = ("-c", tmp_path / "c.yaml", "--set", "scheduler.max_num_seqs=5", "--set", "scheduler.max_num_seqs=3")
    config = json.loads(kvreplay("replay", good, "--json", *options).stdout)["config"]
    assert config["allocator"]["num_blocks"] == 500
    assert config["scheduler"]["max_num_seqs"] == 3
    assert config["scheduler"]["watermark"] == 0.1


def test_limit_takes_the_first_requests(good: Path) -> None:
    summary = json.loads(kvreplay("replay", good, *ROOM, "--json", "--limit", 5).stdout)
    assert summary["requests"] == 5
    assert summary["prompt_tokens"] == sum(600 + row for row in range(5))


def test_capacity_in_tokens_is_whole_blocks_and_the_null_block(good: Path) -> None:
    done = kvreplay("replay", good, "--json", "--set", "allocator.capacity_tokens=6415")
    assert json.loads(done.stdout)["config"]["allocator"]["num_blocks"] == 401


def test_stdin_and_compressed_files_are_the_same_trace(good: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(GOOD.encode()))
    (tmp_path / "t.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(GOOD.encode()))
    args = (*ROOM, "--json")
    summaries = [
        without_times(done.stdout)
        for done in (
            kvreplay("replay", good, *args),
            kvreplay("replay", "-", *args, stdin=GOOD.encode()),
            kvreplay("replay", "-", *args, stdin=gzip.compress(GOOD.encode())),
            kvreplay("replay", tmp_path / "t.jsonl.gz", *args),
            kvreplay("replay", tmp_path / "t.jsonl.zst", *args),
        )
    ]
    for summary in summaries:
        del summary["trace"]
        assert summary == summaries[0]


def test_the_console_command_is_the_same_program(good: Path) -> None:
    command = Path(sys.executable).with_name("kvreplay")
    if not command.exists():
        pytest.skip("not installed with its console command")
    done = subprocess.run([command, "replay", good, *ROOM, "--json"], capture_output=True, text=True, check=True)
    assert without_times(done.stdout) == without_times(kvreplay("replay", good, *ROOM, "--json").stdout)


# ---------------------------------------------------------------------- files


def bytes_in(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SAMPLE_RUN = ("replay", "sample", "--limit", 400, "--set", "allocator.capacity_tokens=8000", "--json")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that a replay can write."""
    folder = tmp_path_factory.mktemp("written")
    files = ("--layout-log", "layout.jsonl", "--perfetto", "spans.json.gz", "--out", "run")
    done = kvreplay(*SAMPLE_RUN, *files, cwd=folder, env={"PYTHONHASHSEED": "1"})
    assert done.returncode == 0
    (folder / "stdout").write_text(json.dumps(without_times(done.stdout)))
    return folder


def test_another_process_writes_the_same_bytes(written: Path, tmp_path: Path) -> None:
    files = ("--layout-log", "layout.jsonl", "--perfetto", "spans.json.gz", "--out", "run")
    done = kvreplay(*SAMPLE_RUN, *files, cwd=tmp_path, env={"PYTHONHASHSEED": "2"})
    (tmp_path / "stdout").write_text(json.dumps(without_times(done.stdout)))
    assert bytes_in(tmp_path) == bytes_in(written)


def test_the_written_configuration_runs_again_to_the_same_bytes(written: Path, tmp_path: Path) -> None:
    config = written / "run" / "config.yaml"
    done = kvreplay("replay", "sample", "--limit", 400, "-c", config, "--out", tmp_path / "run", "--json")
    assert bytes_in(tmp_path / "run") == bytes_in(written / "run")
    assert without_times(done.stdout) == json.loads((written / "stdout").read_text())


def test_no_file_is_left_half_written(written: Path) -> None:
    assert {path.name for path in written.iterdir()} == {"layout.jsonl", "spans.json.gz", "run", "stdout"}


def test_layout_log_has_a_line_a_step_and_the_free_order_last(written: Path) -> None:
    lines = [json.loads(line) for line in (written / "layout.jsonl").read_text().splitlines()]
    steps, last = lines[:-1], lines[-1]
    keys = ["step", "time_ns", "duration_ns", "scheduled", "preempted", "finished", "evicted", "free"]
    assert all(list(line) == keys for line in steps)
    assert [line["step"] for line in steps] == list(range(len(steps)))
    assert list(last) == ["free_order"]
    assert sorted(last["free_order"]) == list(range(1, 501))
    assert sorted(row for line in steps for row in line["finished"]) == list(range(400))
    request, computed, scheduled, new_ids = steps[0]["scheduled"][0]
    assert (steps[0]["step"], request, computed, new_ids[0]) == (0, 0, 0, 1)
    assert len(new_ids) == -(-scheduled // 16)
    assert steps[0]["free"] == 500 - len(new_ids)
    assert steps[0]["duration_ns"] == 5_000_000 + 20_000 * scheduled + 20 * scheduled
    assert all(before["time_ns"] <= after["time_ns"] for before, after in itertools.pairwise(steps))
    summary = json.loads((written / "stdout").read_text())
    assert len(steps) == summary["steps"]
    assert sum(line["evicted"] for line in steps) == summary["evicted_blocks"]
    assert sum(len(line["preempted"]) for line in steps) == summary["preemptions"]


def test_layout_log_is_compressed_by_its_name(good: Path, tmp_path: Path) -> None:
    for name in ("log.jsonl", "log.jsonl.gz"):
        assert kvreplay("replay", good, *ROOM, "--layout-log", tmp_path / name).returncode == 0
    assert gzip.decompress((tmp_path / "log.jsonl.gz").read_bytes()) == (tmp_path / "log.jsonl").read_bytes()


def test_perfetto_is_one_json_object_with_tracks(written: Path) -> None:
    content = json.loads(gzip.decompress((written / "spans.json.gz").read_bytes()))
    events = content["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert {event["tid"] for event in events if event["ph"] == "X"} == set(range(400))
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in events if event["ph"] == "X")
    assert len(events) < 500_000


# ---------------------------------------------------------------------- being stopped


def test_an_interrupt_leaves_no_half_written_file(tmp_path: Path) -> None:
    slow = ("--set", "sim.fast_forward=false", "--set", "arrivals.scale=0.5")
    files = ("--layout-log", "log.jsonl", "--perfetto", "p.json", "--out", "run")
    with subprocess.Popen(
        [*PROGRAM, "replay", "sample", *slow, *files],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # Running, and writing its log, from when the unfinished file has content.
        while process.poll() is None and not any(path.stat().st_size for path in tmp_path.glob(".log*")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.count("\n") <= 1
    assert bytes_in(tmp_path) == {}


@pytest.mark.parametrize("args", [("trace", "convert", "sample", "--to", "mooncake"), ("trace", "info", "sample")])
def test_a_reader_that_has_had_enough(args: tuple[str, ...]) -> None:
    with subprocess.Popen(
        [*PROGRAM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read().decode()
        process.wait(timeout=60)
    assert err == ""


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_was_never_there(options: tuple[str, ...], good: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PROGRAM, "replay", good, *ROOM, *options],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    os.close(writer)
    assert done.stderr.decode() == ""
