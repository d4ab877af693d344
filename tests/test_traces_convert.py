"""Writing any format and reading it back, and the files that writing leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvreplay.traces import InputError, Trace, load_trace, write_trace
from kvreplay.traces.build import build_trace
from kvreplay.traces.columns import Columns
from kvreplay.traces.formats import format_named
from kvreplay.traces.layout import Layout
from kvreplay.traces.output import whole_file
from kvreplay.traces.rows import RowParser
from kvreplay.traces.write import WRITERS, decimal_text

LENGTHS = ("arrival_ns", "prompt_tokens", "output_tokens")
IDENTITY = ("node_ptr", "nodes", "covered_tokens")
OPTIONAL = ("think_ns", "priority")
ALL_FORMATS = (*WRITERS, "parquet")


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Traces with and without identity, sessions, classes, priorities and think times."""
    size = draw(st.sampled_from([0, 1, 16, 512]))
    layout = format_named("kvreplay").layout
    columns = Columns()
    parser = RowParser(layout, columns)
    now = 0
    with_sessions = draw(st.booleans())
    for i in range(draw(st.integers(1, 6))):
        now += draw(st.integers(0, 10**12))
        prompt = draw(st.integers(1, 3 * size or 100))
        row: dict[str, object] = {"row": i, "arrival_ns": now, "prompt_tokens": prompt}
        row["output_tokens"] = draw(st.integers(1, 50))
        if size:
            blocks = -(-prompt // size)
            row |= {
                "granularity": size,
                "nodes": draw(st.lists(st.integers(0, 2), min_size=blocks, max_size=blocks)),
            }
        if with_sessions:
            row["session"] = draw(st.integers(0, 2))
        row["kind"] = draw(st.sampled_from(["chat", "code, mostly", ""]))
        row["priority"] = draw(st.integers(-2, 2))
        parser.add(row)
    return build_trace(columns, layout, "drawn")


def assert_equal(left: Trace, right: Trace, names: tuple[str, ...]) -> None:
    for name in names:
        a, b = getattr(left, name), getattr(right, name)
        assert (a is None) == (b is None), name
        assert a is None or np.array_equal(a, b), name


@pytest.mark.parametrize("format", ["kvreplay", "parquet"])
@settings(deadline=None)
@given(trace=traces())
def test_own_formats_lose_nothing(tmp_path_factory: pytest.TempPathFactory, format: str, trace: Trace) -> None:
    path = tmp_path_factory.getbasetemp() / f"own-{format}"
    assert write_trace(trace, path, format) == ()
    again = load_trace(path)
    assert_equal(trace, again, (*LENGTHS, *IDENTITY, "session", "parent", *OPTIONAL))
    assert (again.granularity, again.num_nodes) == (trace.granularity, trace.num_nodes)
    assert kinds(again) == kinds(trace)


def kinds(trace: Trace) -> list[str]:
    return [] if trace.kind is None else [trace.kind_names[k] if k >= 0 else "" for k in trace.kind]


@pytest.mark.parametrize("format", ALL_FORMATS)
@settings(deadline=None)
@given(trace=traces())
def test_every_format_keeps_times_and_lengths(
    tmp_path_factory: pytest.TempPathFactory, format: str, trace: Trace
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any-{format}.zst"
    write_trace(trace, path, format)
    has_ids = format in ("mooncake", "bailian") and trace.granularity
    again = load_trace(path, id_tokens=trace.granularity if has_ids else None)
    start = trace.arrival_ns[0] if format == "azure" else 0
    assert np.array_equal(again.arrival_ns, trace.arrival_ns - start)
    assert_equal(trace, again, ("prompt_tokens", "output_tokens"))
    if format in ("mooncake", "bailian") and trace.granularity and trace.session is None:
        assert_equal(trace, again, ("nodes", "node_ptr", "covered_tokens"))
    if format == "mooncake":
        assert_equal(trace, again, ("session", "parent"))


def test_the_sample_survives_every_format_with_identity(tmp_path: Path) -> None:
    sample = load_trace("sample", limit=300)
    for format in ("mooncake", "kvreplay", "parquet", "bailian"):
        write_trace(sample, tmp_path / format, format)
        again = load_trace(tmp_path / format, id_tokens=64)
        assert_equal(sample, again, (*LENGTHS, *IDENTITY, "parent"))
    write_trace(sample, tmp_path / "tokens.gz", "tokens")
    tokens = load_trace(tmp_path / "tokens.gz")
    assert_equal(sample, tokens, (*LENGTHS, "session", "parent"))


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    sample = load_trace("sample", limit=10)
    assert any("prefix identity" in lost for lost in write_trace(sample, tmp_path / "a.csv", "azure"))
    assert any("--id-tokens 64" in lost for lost in write_trace(sample, tmp_path / "b", "mooncake"))
    with pytest.raises(InputError, match="no such format"):
        write_trace(sample, tmp_path / "c", "xml")


@given(st.integers(0, 10**15), st.sampled_from(["s", "ms", "us", "ns"]))
def test_times_are_written_exactly(ns: int, unit: str) -> None:
    from decimal import Decimal

    from kvreplay.traces.times import NS_PER_UNIT, number_to_ns

    assert number_to_ns(Decimal(decimal_text(ns, unit)), NS_PER_UNIT[unit]) == ns


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.gz"
    path.write_text("old")
    with pytest.raises(RuntimeError), whole_file(path) as stream:
        stream.write(b"half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.gz"]
    with pytest.raises(InputError, match="cannot be written"), whole_file(tmp_path / "no" / "such"):
        pass


MAPPING = """\
columns: {arrival: at, prompt_tokens: n_in, output_tokens: n_out, block_ids: ids, session: user}
time_unit: us
id_tokens: 4
"""


def test_mapped_csv_jsonl_and_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    mapping = tmp_path / "map.yaml"
    mapping.write_text(MAPPING)
    csv, jsonl, parquet = (tmp_path / name for name in ("t.csv", "t.jsonl", "t.parquet"))
    csv.write_text('user,at,n_in,n_out,ids\nu1,1.5,6,2,"[3, 4]"\nu2,2,3,1,3\nu1,9,8,1,3 5\n')
    jsonl.write_text(
        '{"at": 1.5, "n_in": 6, "n_out": 2, "ids": [3, 4], "user": "u1"}\n'
        '{"at": 2, "n_in": 3, "n_out": 1, "ids": [3], "user": "u2"}\n'
        '{"at": 9, "n_in": 8, "n_out": 1, "ids": [3, 5], "user": "u1"}\n'
    )
    columns = {"at": [1.5, 2.0, 9.0], "n_in": [6, 3, 8], "n_out": [2, 1, 1], "ids": [[3, 4], [3], [3, 5]]}
    pq.write_table(pa.table(columns | {"user": ["u1", "u2", "u1"]}), parquet)
    for path in (csv, jsonl, parquet):
        trace = load_trace(path, mapping=mapping)
        assert trace.arrival_ns.tolist() == [1500, 2000, 9000]
        assert trace.nodes is not None
        assert trace.nodes.tolist() == [0, 1, 0, 0, 1]
        assert trace.session is not None
        assert trace.session.tolist() == [0, 1, 0]


def test_parquet_stamps_and_bad_rows(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "azure.parquet"
    stamps = pa.array([1_700_000_000_000_000_100, 1_700_000_000_000_000_000], pa.timestamp("ns", "UTC"))
    pq.write_table(pa.table({"TIMESTAMP": stamps, "ContextTokens": [5, 6], "GeneratedTokens": [1, 2]}), path)
    assert load_trace(path).arrival_ns.tolist() == [0, 100]
    pq.write_table(pa.table({"TIMESTAMP": stamps, "ContextTokens": [5, 0], "GeneratedTokens": [1, 2]}), path)
    with pytest.raises(InputError, match=r"azure.parquet:2: field 'ContextTokens': got 0, expected a whole"):
        load_trace(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match="not a readable Parquet file"):
        load_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colums: {}", "unknown key 'colums', did you mean 'columns'"),
        ("columns: {arival: t}", "unknown key 'arival', did you mean 'arrival'"),
        ("columns: {arrival: t}", "columns.prompt_tokens: missing"),
        ("columns: {arrival: t, prompt_tokens: p, output_tokens: o, block_ids: b}", "id_tokens: got None"),
        ("{columns: {arrival: t, prompt_tokens: p, output_tokens: o}, time_unit: h}", "time_unit: got 'h'"),
        ("columns: {arrival: 5, prompt_tokens: p, output_tokens: o}", "columns.arrival: got 5"),
        ("columns: [", "not valid YAML"),
    ],
)
def test_wrong_mappings(tmp_path: Path, text: str, message: str) -> None:
    mapping, trace = tmp_path / "map.yaml", tmp_path / "t.csv"
    mapping.write_text(text)
    trace.write_text("t,p,o\n1,1,1\n")
    with pytest.raises(InputError) as caught:
        load_trace(trace, mapping=mapping)
    assert str(caught.value).startswith(f"{mapping}: ")
    assert message in str(caught.value)


def test_layouts_list_every_field_they_read() -> None:
    layout = Layout("x", "csv", "a", "s", prompt_tokens="p", output_tokens="o", session="q")
    assert layout.fields == {"a", "p", "o", "q"}
