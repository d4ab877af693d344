"""`kvreplay capacity` and capacity from `model` and `gpu`, from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvreplay.experiments.capacity_presets import preset_names
from kvreplay.experiments.cli import main
from kvreplay.experiments.config import engine_capacity, load_settings

LLAMA = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def capacity(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict]:
    """Rows of the command's JSON object."""
    assert main(["capacity", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_pair_of_presets(capsys: pytest.CaptureFixture[str], engine: str) -> None:
    rows = capacity(capsys, "--engine", engine, "--tp", "1,8", "--trace", "sample")
    assert len(rows) == 2 * len(preset_names("models")) * len(preset_names("gpus"))
    for row in rows:
        assert (row["problem"] is None) == (row["tokens"] > 0)
    impossible = [row for row in rows if row["model"].endswith("DeepSeek-V3") and row["tensor_parallel"] == 1]
    assert all("leaves no room" in row["problem"] for row in impossible)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--model", "llama-3.1-8b,deepseek-v3", "--gpu", "rtx-4090"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "128.0" in lines[1]
    assert lines[2].endswith("does not fit")


def test_a_config_of_ones_own_is_the_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "config.json"
    own.write_text(json.dumps(LLAMA))
    mine, preset = (capacity(capsys, "--model", name, "--gpu", "h100")[0] for name in (str(own), "llama-3.1-8b"))
    assert mine["num_blocks"] == preset["num_blocks"]


def test_the_order_in_which_capacity_is_decided() -> None:
    pair = ["model=llama-3.1-8b", "gpu=rtx-4090"]
    derived = engine_capacity(load_settings(None, [*pair, "scheduler.max_num_batched_tokens=2048"]))
    assert 2400 < derived < 2900
    assert engine_capacity(load_settings(None, [*pair, "allocator.capacity_tokens=1600"])) == 101
    assert engine_capacity(load_settings(None, [*pair, "allocator.num_blocks=77"])) == 77
    assert engine_capacity(load_settings(None, [*pair, "gpu_memory_utilization=0.8"])) < derived


def test_the_block_size_of_the_backend() -> None:
    backend = "attention_backend=FLASHMLA"
    assert load_settings(None, ["allocator.block_size=auto", backend]).allocator.block_size == 64
    assert load_settings(None, ["allocator.block_size=auto"]).allocator.block_size == 16
    # What is said last holds.
    assert load_settings(None, ["allocator.block_size=auto", "allocator.block_size=32"]).allocator.block_size == 32
    assert load_settings(None, ["engine=sglang", "allocator.page_size=auto"]).allocator.block_size == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "h9000"], "--gpu: h9000: no such preset or file"),
        (["--tp", "0"], "--tp 0: expected whole numbers"),
        (["--block-size", "0"], "--block-size 0: expected a whole number"),
        (["--gpu-memory-utilization", "2"], "expected a share above 0"),
        (["--attention-backend", "none"], "attention_backend: none: not a backend"),
    ],
)
def test_wrong_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["capacity", *arguments]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert message in errors[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "expected keys and values"),
        ("{not json", "neither YAML nor JSON"),
        (json.dumps({**LLAMA, "hidden_size": "wide"}), "hidden_size: expected a number above 0"),
        (json.dumps({key: value for key, value in LLAMA.items() if key != "vocab_size"}), "vocab_size: expected"),
    ],
)
def test_a_wrong_config(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str) -> None:
    own = tmp_path / "config.json"
    own.write_text(content)
    assert main(["capacity", "--model", str(own)]) == 2
    assert message in capsys.readouterr().err


def test_a_replay_says_why_a_pair_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "sample", "--set", "model=llama-3.1-70b", "--set", "gpu=a10"]) == 2
    assert "leaves no room for the KV cache on NVIDIA A10" in capsys.readouterr().err
