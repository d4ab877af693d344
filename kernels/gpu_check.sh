#!/usr/bin/env bash
# Proves and measures on a CUDA machine, in under four minutes: validates replays of both engines with compiled kernels
# at every step, benchmarks, and prints a short table last. Full results go to $OUT (default: ./gpu_check).
#
# Needs this checkout and a python3 with torch, triton, numpy, pandas, simpy, pyyaml and pyarrow; nothing is installed.
# Another interpreter: PYTHON=/path/to/python3 kernels/gpu_check.sh
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
out=$(mkdir -p "${OUT:-gpu_check}" && cd "${OUT:-gpu_check}" && pwd)
links=$(mktemp -d)
trap 'rm -rf "$links"' EXIT
# The checkout under the package's name: its folders are the packages.
ln -s "$repo" "$links/kvreplay"
export PYTHONPATH="$links${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
unset TRITON_INTERPRET
cd "$links"

"$python" -c 'import torch; assert torch.cuda.is_available(), "no CUDA device"; print(torch.cuda.get_device_name())'

failed=0
validate() { # name, seconds it may take, arguments
    local name=$1 limit=$2
    shift 2
    timeout "$limit" "$python" -m kvreplay.experiments kernels validate "$@" --device cuda --quiet --json \
        >"$out/validate-$name.json" 2>"$out/validate-$name.log" || failed=1
}
validate vllm 50 sample --limit 1000
validate vllm-every-step 20 sample --limit 15 --every 1
validate vllm-separate-fp16 20 sample --limit 300 --kv-layout separate --dtype fp16
validate sglang-1 20 sample --limit 300 --set engine=sglang
validate sglang-64 20 sample --limit 300 --set engine=sglang --set allocator.page_size=64
timeout 100 "$python" -m kvreplay.experiments kernels bench --device cuda --quiet --out "$out" \
    >"$out/bench.txt" 2>"$out/bench.log" || failed=1

"$python" - "$out" <<'PYTHON'
import json
import pathlib
import sys

out = pathlib.Path(sys.argv[1])
print("\nvalidation            steps   checked     tokens read   wrong  slots equal  error/torch")
for file in sorted(out.glob("validate-*.json")):
    try:
        found = json.loads(file.read_text())
    except ValueError:
        print(f"{file.stem[9:]:<20}  NO RESULT: {file.with_suffix('.log').read_text()[-200:].strip()}")
        continue
    print(
        f"{file.stem[9:]:<20}{found['steps']:>7,}{found['steps_checked']:>10,}{found['tokens_checked']:>16,}"
        f"{found['fingerprints_wrong']:>8}{found['slots_equal']!s:>13}{found['attention_error_to_torch_max']:>13.2f}"
        f"{'' if found['ok'] else '  ' + str(found['differences'])}"
    )
bench = out / "bench.json"
if not bench.exists():
    sys.exit(f"bench: NO RESULT: {(out / 'bench.log').read_text()[-400:].strip()}")
found = json.loads(bench.read_text())
ceilings = found["ceilings"]
print(f"\n{found['device']}: copy {ceilings['copy_gb_per_s']:,.0f} GB/s, "
      f"matrix product {ceilings['matmul_tflop_per_s']:,.0f} TFLOP/s ({found['dtype']})")
sizes = list(dict.fromkeys(row["block_size"] for row in found["rows"]))
print(f"share of ceiling, fragmented layout         {''.join(f'{size!s:>11}' for size in sizes)}")
shares = {}
for row in found["rows"]:
    if row["layout"] == "fragmented":
        shares.setdefault((row["operation"], row["by"]), {})[row["block_size"]] = row["share_of_ceiling"]
for (operation, by), by_size in sorted(shares.items()):
    cells = "".join(f"{100 * by_size[size]:>10.1f}%" if size in by_size else f"{'-':>11}" for size in sizes)
    print(f"{operation + ', ' + by:<44}{cells}")
PYTHON
exit "$failed"
