"""The generator, and the sample it made."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import kvreplay.traces
import numpy as np
import pytest
from kvreplay.traces import InputError, builtin_names, load_trace, write_trace
from kvreplay.traces.synth import SAMPLE, Synth, synthesize

SAMPLE_FILE = Path(kvreplay.traces.__file__).parent / "data" / "sample.jsonl.gz"
SHARED = Path(__file__).parents[2] / "shared" / "traces"


def test_the_sample_is_what_the_generator_makes(tmp_path: Path) -> None:
    write_trace(synthesize(SAMPLE), tmp_path / "again.gz", "mooncake")
    assert gzip.decompress((tmp_path / "again.gz").read_bytes()) == gzip.decompress(SAMPLE_FILE.read_bytes())


def test_the_sample_is_what_it_is_said_to_be() -> None:
    sample = load_trace("sample")
    assert builtin_names() == ("sample",)
    assert sample.name == "sample"
    assert 4500 < len(sample) < 5500
    assert 3500 < sample.arrival_ns[-1] / 1e9 < 3600
    assert 1300 < sample.prompt_tokens.mean() < 1700
    assert 150 < sample.output_tokens.mean() < 250
    assert sample.granularity == 64
    assert sample.parent is not None
    assert 0.5 < (sample.parent >= 0).mean() < 0.8
    assert SAMPLE_FILE.stat().st_size < 500_000


def test_the_seed_decides() -> None:
    what = Synth(requests=200)
    assert np.array_equal(synthesize(what).arrival_ns, synthesize(what).arrival_ns)
    assert not np.array_equal(synthesize(what).prompt_tokens[:50], synthesize(replace(what, seed=1)).prompt_tokens[:50])


def test_poisson_arrivals_are_less_bursty() -> None:
    def spread(arrivals: str) -> float:
        what = Synth(requests=20_000, turns=1.0, arrivals=arrivals)
        counts = np.bincount(synthesize(what).arrival_ns // 10**10)
        return float(counts.var() / counts.mean())

    assert spread("poisson") < 1.5 < 5 < spread("bursty")


@pytest.mark.parametrize("wrong", [{"requests": 0}, {"turns": 0.5}, {"arrivals": "often"}, {"id_tokens": 0}])
def test_wrong_numbers(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="--"):
        Synth(**wrong)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def shared() -> Iterator[Path]:
    if not SHARED.is_dir():
        pytest.skip(f"needs the public traces in {SHARED}")
    yield SHARED


def test_mooncake_conversation(shared: Path) -> None:
    trace = load_trace(shared / "mooncake_conversation.jsonl")
    assert (len(trace), int(trace.prompt_tokens.sum())) == (12_031, 144_793_823)
    assert (trace.num_nodes, trace.granularity, trace.notes) == (182_790, 512, ())


@pytest.mark.parametrize(("name", "rows"), [("conv", 19_366), ("code", 8_819)])
def test_azure_2023(shared: Path, name: str, rows: int) -> None:
    path = shared / f"azure_2023_{name}.csv"
    trace = load_trace(path)
    assert len(trace) == rows
    stamps = [line.split(",")[0] for line in path.read_text().splitlines()[1:]]
    ticks = [int(stamp[11:13]) * 3600 + int(stamp[14:16]) * 60 + int(stamp[17:19]) for stamp in stamps]
    ns = [tick * 10**9 + int(stamp[20:27]) * 100 for tick, stamp in zip(ticks, stamps, strict=True)]
    first = min(ns)
    assert trace.arrival_ns.tolist() == [value - first for value in sorted(ns)]
