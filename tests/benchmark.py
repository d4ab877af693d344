#!/usr/bin/env python3
"""How long replays take, beside the engines' own classes and beside another simulator. Prints a Markdown table.

    python tests/benchmark.py --traces ../shared/traces [--repeat 5]
        [--vllm-python PYTHON --vllm-recorder record.py] [--sglang-python PYTHON --sglang-recorder record.py]
        [--dynamo-python PYTHON]

Every case is run in processes of its own, those of one row in turn, so that a busy machine slows them alike; the
figures are medians of CPU seconds. `replay` is the replay alone, `process` all of it (start, imports, reading the
trace), RSS its largest size. The other programs need environments of their own: the head of
`tests/recordings/record_vllm.py` says how to make vLLM's; Dynamo's replay is in the package `ai-dynamo-runtime`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MOONCAKE, AZURE = "mooncake_conversation.jsonl", "azure_2023_conv.csv"


@dataclass(frozen=True)
class Case:
    """One replay, and how others do the same work."""

    name: str
    trace: str
    settings: tuple[str, ...]
    limit: int | None = None
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By program (`vllm`, `sglang`, `dynamo`): the arguments that ask it for the same."""


SYNC = "scheduler.async_scheduling=false"
CASES = (
    Case(
        "Mooncake, 262,144 blocks",
        MOONCAKE,
        ("allocator.num_blocks=262144",),
        None,
        {"dynamo": ("vllm", "262144", "16")},
    ),
    Case(
        "Mooncake, 60,000 blocks", MOONCAKE, ("allocator.num_blocks=60000",), None, {"dynamo": ("vllm", "60000", "16")}
    ),
    Case(
        "Mooncake, first 1,000, 60,000 blocks, synchronous",
        MOONCAKE,
        ("allocator.num_blocks=60000", SYNC),
        1000,
        {"vllm": ("--trace", "mooncake", "--blocks", "60000")},
    ),
    Case(
        "Azure chat, first 2,000, 4,000 blocks, synchronous",
        AZURE,
        ("allocator.num_blocks=4000", SYNC),
        2000,
        {"vllm": ("--trace", "azure", "--blocks", "4000")},
    ),
    Case(
        "Mooncake, SGLang, 960,000 slots",
        MOONCAKE,
        ("engine=sglang", "allocator.num_slots=960000"),
        None,
        {"dynamo": ("sglang", "960000", "1")},
    ),
    Case(
        "Mooncake, SGLang, 15,000 pages of 64",
        MOONCAKE,
        ("engine=sglang", "allocator.num_slots=960000", "allocator.page_size=64"),
        None,
        {"dynamo": ("sglang", "15000", "64")},
    ),
    Case(
        "Mooncake, first 1,000, SGLang, 960,000 slots",
        MOONCAKE,
        ("engine=sglang", "allocator.num_slots=960000"),
        1000,
        {"sglang": ("--trace", "mooncake", "--slots", "960000", "--page-size", "1")},
    ),
)

DYNAMO = """
import sys
import dynamo._core as core
trace, engine, blocks, size = sys.argv[1:]
settings = core.MockEngineArgs(
    engine_type=engine, num_gpu_blocks=int(blocks), block_size=int(size), max_num_seqs=256, max_num_batched_tokens=8192)
core.run_mocker_trace_replay([trace], settings, trace_block_size=512)
"""


NO_OP = """
import dataclasses, sys, time
from no_op_setup import NoOpSetup
from kvreplay.sim.settings import AllocatorSettings, Settings
from kvreplay.sim.simulation import Simulation
from kvreplay.traces import load_trace
trace, make = load_trace(sys.argv[1]), NoOpSetup if sys.argv[2] == "no_op" else None
settings = Settings(allocator=AllocatorSettings(prefix_caching=False))
begin = time.process_time()
Simulation(trace, settings, 262_144, **({"make": make} if make else {})).run()
print('"cpu_s":', time.process_time() - begin)
"""
"""The same steps on the pool without prefix cache, or on the allocator that does nothing."""


@dataclass(frozen=True)
class Run:
    """CPU seconds of the work and of the whole process, and the process's largest size in MB."""

    work_s: float
    process_s: float
    rss_mb: float


def measured(command: Sequence[str], work: Callable[[str], float | None]) -> Run:
    """Run `command`; `work` reads the CPU seconds of the work proper out of its output, None if it is all."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder)
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    total = usage.ru_utime + usage.ru_stime
    seconds = work(output)
    scale = 1024 if sys.platform == "darwin" else 1
    return Run(total if seconds is None else seconds, total, usage.ru_maxrss / 1024 / scale)


def ours(case: Case, traces: Path) -> Run:
    """Run our replay of a case."""
    command = [sys.executable, "-m", "kvreplay.experiments", "replay", str(traces / case.trace), "--json", "--quiet"]
    for setting in case.settings:
        command += ["--set", setting]
    if case.limit is not None:
        command += ["--limit", str(case.limit)]
    return measured(command, lambda output: json.loads(output)["cpu_s"])


def theirs(case: Case, program: str, args: argparse.Namespace) -> Run | None:
    """Run another program's replay of a case; None where there is none here."""
    trace = str(args.traces / case.trace)
    python = getattr(args, f"{program}_python")
    if python is None:
        return None
    if program == "dynamo":
        return measured([python, "-c", DYNAMO, trace, *case.others[program]], lambda output: None)
    recorder = getattr(args, f"{program}_recorder")
    command = [python, recorder, "--path", trace, "--n", str(case.limit), *case.others[program]]
    command += ["--mode", "time"] if program == "vllm" else ["--out", "recording.npz"]
    return measured(command, _engine_seconds)


def _engine_seconds(output: str) -> float | None:
    found = re.search(r'"cpu_s": ([0-9.]+)', output)
    return float(found.group(1)) if found else None


def row(case: Case, args: argparse.Namespace) -> str:
    """Measure one case and return its line of the table."""
    programs = [name for name in case.others if getattr(args, f"{name}_python") is not None]
    own: list[Run] = []
    other: dict[str, list[Run]] = {name: [] for name in programs}
    for _ in range(args.repeat):
        own.append(ours(case, args.traces))
        for name in programs:
            run = theirs(case, name, args)
            assert run is not None
            other[name].append(run)
    work = statistics.median(run.work_s for run in own)
    cells = [case.name, f"{work:.2f}", f"{statistics.median(run.process_s for run in own):.2f}"]
    cells.append(f"{statistics.median(run.rss_mb for run in own):.0f}")
    texts: list[str] = []
    for name, runs in other.items():
        seconds = statistics.median(run.work_s for run in runs)
        ratio = seconds / (statistics.median(run.process_s for run in own) if name == "dynamo" else work)
        size = statistics.median(run.rss_mb for run in runs)
        texts.append(f"{name}: {seconds:.2f} s, {size:.0f} MB ({ratio:.1f} times ours)")
    return "| " + " | ".join([*cells, "; ".join(texts) or "-"]) + " |"


def own_cost(args: argparse.Namespace) -> str:
    """Measure what the pool costs: the same steps with it and without; returns a sentence."""
    here = str(Path(__file__).parent)
    program = f"import sys; sys.path.insert(0, {here!r})\n{NO_OP}"
    seconds: dict[str, list[float]] = {"pool": [], "no_op": []}
    for _ in range(args.repeat):
        for kind, runs in seconds.items():
            command = [sys.executable, "-c", program, str(args.traces / MOONCAKE), kind]
            runs.append(measured(command, _engine_seconds).work_s)
    pool, nothing = (statistics.median(runs) for runs in seconds.values())
    return (
        f"Mooncake, 262,144 blocks, no prefix cache: {pool:.2f} CPU s; on an allocator that does nothing {nothing:.2f}."
    )


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="the folder of the public traces")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    for program in ("vllm", "sglang", "dynamo"):
        parser.add_argument(f"--{program}-python")
    for program in ("vllm", "sglang"):
        parser.add_argument(f"--{program}-recorder")
    args = parser.parse_args()
    args.traces = args.traces.resolve()
    print("| case | replay, CPU s | process, CPU s | RSS, MB | others, CPU s |\n|---|---|---|---|---|")
    for case in CASES:
        if args.only in case.name:
            print(row(case, args), flush=True)
    if not args.only:
        print("\n" + own_cost(args))


if __name__ == "__main__":
    main()
