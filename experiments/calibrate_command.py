"""`kvreplay calibrate`: fit the step time to a recorded run of a real engine."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from typing import Any

from ..sim.settings import LatencySettings, RooflineSettings, Settings
from ..traces.errors import InputError
from ..traces.output import whole_file
from .calibrate_fit import Fit, fit
from .calibrate_recorded import Recorded
from .calibrate_terms import LinearTerms, RooflineTerms, Terms
from .capacity_gpu import load_gpu
from .capacity_model import load_model
from .capacity_roofline import roofline_coefficients
from .capacity_settings import deployment
from .progress import progress_bar
from .replay_command import add_setting_options
from .verify_command import report
from .verify_settings import add_recorded_options, recorded_from_args


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_recorded_options(parser)
    parser.add_argument("--out", metavar="FILE.yaml", help="write the fitted step time, for -c of other commands")
    parser.add_argument(
        "--kind",
        choices=("roofline", "linear"),
        help="what to fit (default: roofline where model and gpu are known, else linear)",
    )
    add_setting_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    recorded, settings, fitted = recorded_from_args(args)
    terms = _terms(args.kind, settings)
    with progress_bar("replaying", quiet=args.quiet) as progress:
        found = fit(recorded, settings, terms, fitted or len(recorded), progress)
    settings = replace(settings, latency=found.latency)
    fit_said: dict[str, Any] = {
        "fitted": dict(zip(terms.names, found.values.tolist(), strict=True)),
        "fitted_requests": found.fitted,
        "replays": found.replays,
    }
    comparison = report(args, recorded, settings, fitted, fit_said)
    if args.out is not None:
        with whole_file(args.out) as file:
            file.write(_yaml(found, recorded, comparison).encode())
        if not args.quiet:
            print(f"wrote {args.out}: use it with -c {args.out}", file=sys.stderr)
    return 0


def _terms(kind: str | None, settings: Settings) -> Terms:
    known = settings.model is not None and settings.gpu is not None
    if kind == "linear" or (kind is None and not known):
        return LinearTerms()
    if settings.model is None or settings.gpu is None:
        raise InputError(
            "--kind roofline: model and gpu are not both known; expected --set model=NAME --set gpu=NAME, "
            "or --kind linear"
        )
    base = roofline_coefficients(load_model(settings.model), load_gpu(settings.gpu), deployment(settings))
    return RooflineTerms(base)


def _yaml(found: Fit, recorded: Recorded, comparison: dict[str, Any]) -> str:
    """The configuration file: where it comes from as comments, then the latency section."""
    import yaml

    errors = "; ".join(
        f"{name} {100 * comparison['errors'][metric]['mean']:+.2f} % mean, "
        f"{100 * comparison['errors'][metric]['p99']:+.2f} % p99"
        for metric, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E"))
    )
    comments = (
        f"# Fitted by kvreplay calibrate to the first {found.fitted} of {len(recorded)} requests of {recorded.name}.",
        f"# Off on the other {comparison['not_fitted']}: {errors}.",
    )
    return "\n".join((*comments, yaml.safe_dump({"latency": _section(found.latency)}, sort_keys=False)))


def _section(latency: LatencySettings) -> dict[str, Any]:
    if latency.kind == "roofline":
        values = asdict(latency.roofline)
        # Spelled out, so that a model and a GPU in another file change nothing of it.
        return {
            "kind": "roofline",
            "roofline": {name: value for name, value in values.items() if value is not None},
        }
    tree = asdict(replace(latency, roofline=RooflineSettings()))
    return {name: value for name, value in tree.items() if name not in ("roofline", "profile")}
