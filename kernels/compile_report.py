"""Compile kernels for GPUs that are not there, and report what each needs of a multiprocessor.

    python -m kvreplay.kernels.compile_report --arch 90 --default

prints a table; `--json` one object a line. Triton must not be in interpreter mode.
"""

from __future__ import annotations

# torch and triton come with the extra `kernels`.
# pyright: reportMissingImports=false
import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget

from .variants import Variant, variants

ARCHITECTURES = (80, 90, 100)
WARP_SIZE = 32


class Resources(NamedTuple):
    """What one compiled kernel needs."""

    operation: str
    config: str
    arch: int
    registers: int
    """A thread."""
    shared_bytes: int
    """A program."""
    spill_bytes: int
    """A thread: stack frame and local memory."""
    threads: int
    """A program."""


def compile_variant(variant: Variant, arch: int) -> Resources:
    """Compile for `sm_{arch}` and read the assembler's own account of the result.

    Raises:
        RuntimeError: the report of resources cannot be read.
    """
    options = {"num_warps": variant.tile.num_warps, "num_stages": variant.tile.num_stages}
    compiled = triton.compile(variant.source(), target=GPUTarget("cuda", arch, WARP_SIZE), options=options)
    usage = _resource_usage(compiled.asm["cubin"])
    return Resources(
        variant.operation,
        variant.config,
        arch,
        usage["REG"],
        compiled.metadata.shared,
        usage["STACK"] + usage["LOCAL"],
        variant.tile.num_warps * WARP_SIZE,
    )


def chosen(arch: int, default_only: bool, pattern: str = "") -> Iterator[Variant]:
    """The variants that exist on an architecture, all or those of default configurations, whose name has `pattern`."""
    for variant in variants():
        if (variant.default or not default_only) and variant.needs <= arch and pattern in variant.operation:
            yield variant


def markdown(rows: Iterable[Resources]) -> str:
    """A table with a line a configuration and `registers / shared bytes / spilled bytes` for each architecture."""
    found: dict[tuple[str, str], dict[int, Resources]] = {}
    for row in rows:
        found.setdefault((row.operation, row.config), {})[row.arch] = row
    archs = sorted({arch for by_arch in found.values() for arch in by_arch})
    lines = [
        "| operation | configuration | threads | " + " | ".join(f"sm_{arch}" for arch in archs) + " |",
        "|---|---|---|" + "---|" * len(archs),
    ]
    for (operation, config), by_arch in found.items():
        cells = [_cell(by_arch.get(arch)) for arch in archs]
        threads = next(iter(by_arch.values())).threads
        lines.append(f"| {operation} | {config} | {threads} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", type=int, action="append", choices=ARCHITECTURES, help="repeatable; default: all")
    parser.add_argument("--default", action="store_true", help="only default configurations")
    parser.add_argument("--only", default="", metavar="TEXT", help="only operations whose name has it")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, as each is compiled")
    args = parser.parse_args()
    rows: list[Resources] = []
    for arch in args.arch or ARCHITECTURES:
        for variant in chosen(arch, args.default, args.only):
            rows.append(compile_variant(variant, arch))
            if args.json:
                print(json.dumps(rows[-1]._asdict()), flush=True)
    if not args.json:
        print(markdown(rows))
    return 0


def _cell(row: Resources | None) -> str:
    return "-" if row is None else f"{row.registers} / {row.shared_bytes} / {row.spill_bytes}"


def _resource_usage(cubin: bytes) -> dict[str, int]:
    tool = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    if usage.keys() != {"REG", "STACK", "LOCAL"}:
        raise RuntimeError(f"cuobjdump reported no resources: {text!r}")
    return usage


if __name__ == "__main__":
    sys.exit(main())
