"""`kvreplay trace`, subcommand by subcommand."""

from __future__ import annotations

import argparse
import functools
import hashlib
import http.server
import json
import re
import shlex
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kvreplay.experiments.progress import progress_bar
from kvreplay.experiments.trace_command import configure, run
from kvreplay.traces import InputError, load_trace
from kvreplay.traces.catalogue import PUBLISHED, Published

TOKENS = (
    '{"timestamp": 0, "prompt_token_ids": [1, 2, 3, 4, 5], "output_token_ids": [6]}\n'
    '{"timestamp": 1, "prompt_token_ids": [1, 2, 3, 4, 5, 6, 7], "output_length": 2}\n'
)


def trace(*args: object) -> int:
    parser = argparse.ArgumentParser()
    configure(parser)
    return run(parser.parse_args([str(arg) for arg in args]))


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace("info", "sample", "--limit", 100) == 0
    out, err = capsys.readouterr()
    assert "infinite cache hit share" in out
    assert "requests  100" in out
    assert "█" in out
    assert err == ""
    trace("info", "sample", "--limit", 100, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == 100
    assert 0 < found["infinite_cache_hit_share"] < 1
    assert set(found["prompt_length"]) == {"mean", "p50", "p90", "p95", "p99", "max"}


def test_info_without_a_trace_lists_names(capsys: pytest.CaptureFixture[str]) -> None:
    trace("info")
    out = capsys.readouterr().out
    assert all(name in out for name in ("sample", *PUBLISHED))
    trace("info", "--json")
    assert set(json.loads(capsys.readouterr().out)["published"]) == set(PUBLISHED)


def test_info_of_one_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,1\n")
    trace("info", tmp_path / "one")
    assert "requests  1" in capsys.readouterr().out


def test_notes_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_text(TOKENS + "oops\n")
    trace("info", tmp_path / "t", "--json", "--on-error", "skip")
    out, err = capsys.readouterr()
    assert "1 bad row was skipped" in err
    assert json.loads(out)["notes"]
    trace("info", tmp_path / "t", "--json", "--on-error", "skip", "--quiet")
    assert capsys.readouterr().err == ""


def test_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace("convert", "sample", "--to", "azure", "--limit", 50, "-o", tmp_path / "t.csv.gz")
    assert "prefix identity is not written" in capsys.readouterr().err
    assert len(load_trace(tmp_path / "t.csv.gz")) == 50
    trace("convert", "sample", "--to", "burstgpt", "--limit", 2, "--quiet")
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (3, "")


def test_synth(tmp_path: Path) -> None:
    options = ("--requests", 100, "--duration", 60, "--arrivals", "poisson", "--quiet")
    for name in ("a", "b"):
        trace("synth", *options, "-o", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert load_trace(tmp_path / "a", id_tokens=64).arrival_ns[-1] < 60 * 10**9
    with pytest.raises(InputError, match="--turns"):
        trace("synth", "--turns", 0.5)


def test_hash(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(TOKENS)
    trace("hash", tmp_path / "t", "--block-size", 2, "--quiet", "-o", tmp_path / "h")
    rows = [json.loads(line) for line in (tmp_path / "h").read_text().splitlines()]
    assert [row["hash_ids"] for row in rows] == [[0, 1, 2], [0, 1, 2, 3]]
    assert [row["timestamp"] for row in rows] == [0, 1000]
    with pytest.raises(InputError, match="expected token ids"):
        trace("hash", "sample")


def test_hash_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "t").write_text('{"timestamp": 0, "prompt": "ab", "output": "c"}\n{"prompt": 5}\n')
    with pytest.raises(InputError, match="pip install tokenizers"):
        trace("hash", tmp_path / "t", "--tokenizer", "any")

    class Tokenizer:
        @staticmethod
        def from_pretrained(name: str) -> Tokenizer:
            assert name == "letters"
            return Tokenizer()

        def encode(self, text: str) -> argparse.Namespace:
            return argparse.Namespace(ids=[ord(letter) for letter in text])

    monkeypatch.setitem(sys.modules, "tokenizers", argparse.Namespace(Tokenizer=Tokenizer))
    with pytest.raises(InputError, match=r"t:2: expected a JSON object with a text 'prompt'"):
        trace("hash", tmp_path / "t", "--tokenizer", "letters")
    (tmp_path / "t").write_text('{"timestamp": 0, "prompt": "ab", "output": "c"}\n')
    trace("hash", tmp_path / "t", "--tokenizer", "letters", "--block-size", 2, "-o", tmp_path / "h")
    row = json.loads((tmp_path / "h").read_text())
    assert (row["input_length"], row["output_length"], row["hash_ids"]) == (2, 1, [0])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A web server on this machine that has the file t.jsonl; its address."""
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "t.jsonl").write_text(TOKENS)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def test_fetch(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    good = Published(f"{server}/t.jsonl", hashlib.sha256(TOKENS.encode()).hexdigest(), "CC0", "a test")
    monkeypatch.setitem(PUBLISHED, "bailian-a", good)
    monkeypatch.setitem(PUBLISHED, "bailian-b", replace(good, url=f"{server}/none.jsonl"))
    with pytest.raises(InputError, match="kvreplay trace fetch bailian-a"):
        load_trace("bailian-a")
    with pytest.raises(InputError, match=r"bailian-b: .*none.jsonl cannot be downloaded"):
        trace("fetch", "bailian-b")
    trace("fetch", "bailian-a")
    out = capsys.readouterr().out
    assert "licence CC0" in out
    assert f"{good.sha256} (as expected)" in out
    assert len(load_trace("bailian-a")) == 2


def test_fetch_refuses_another_file(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(PUBLISHED, "bailian-a", Published(f"{server}/t.jsonl", "0" * 64, "CC0", "a test"))
    with pytest.raises(InputError, match=r"has sha256 .*, expected 0000"):
        trace("fetch", "bailian-a")
    assert list((tmp_path / "cache" / "kvreplay").iterdir()) == []


def test_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress_bar("reading") as report:
        assert report is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("reading", quiet=True) as report:
        assert report is None
    with progress_bar("reading") as report:
        assert report is not None
        report(1, 2)
        report(2, None)


DOCUMENT = Path(__file__).parents[1] / "docs" / "traces.md"


def test_every_documented_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^kvreplay trace (.*)$", DOCUMENT.read_text(), re.MULTILINE)
    assert len(commands) > 5
    for command in commands:
        assert trace(*shlex.split(command)) == 0


def test_documented_python_and_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL))
    exec(blocks["python"], {})
    Path("map.yaml").write_text(blocks["yaml"].replace("  prompt_token_ids", "  # prompt_token_ids"))
    header = "start_time,n_prompt,n_generated,hashes,conversation,pause,model,priority\n"
    Path("t.csv").write_text(header + "5,40,3,7 8,a,,M,1\n6.5,20,0,7,a,1,M,1\n7,64,2,[7 9],a,1.5,M,0\n")
    found = load_trace("t.csv", mapping="map.yaml")
    assert found.arrival_ns.tolist() == [5_000_000, 7_000_000]
    assert found.think_ns is not None
    assert found.think_ns.tolist() == [-1, 1_500_000]


def test_every_subcommand_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("info", "convert", "synth", "fetch", "hash"):
        with pytest.raises(SystemExit) as caught:
            trace(command, "--help")
        assert caught.value.code == 0
        assert len(capsys.readouterr().out) > 300
        assert f"trace {command}" in DOCUMENT.read_text()
