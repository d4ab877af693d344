"""`kvreplay trace`: describe, convert, generate, download and hash traces."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from ..traces.catalogue import BUILTINS, PUBLISHED
from ..traces.errors import InputError
from ..traces.formats import FORMATS
from ..traces.load import load_trace
from ..traces.times import TIME_UNITS
from ..traces.trace import Trace
from ..traces.write import WRITERS, write_trace
from .progress import progress_bar

_TRACE_HELP = "a path (plain, .gz, .zst), - for stdin, or a name: `kvreplay trace info` lists them"


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a trace is read, for every command that reads one."""
    group = parser.add_argument_group("reading the trace")
    names = [known.name for known in FORMATS]
    group.add_argument("--format", choices=names, help="the trace's format; recognised from its content if not given")
    group.add_argument("--time-unit", choices=TIME_UNITS, help="unit of the time stamps, where not the format's own")
    group.add_argument("--id-tokens", type=int, metavar="N", help="tokens a block id of the trace stands for")
    group.add_argument("--mapping", metavar="FILE.yaml", help="which column means what, for any CSV, JSONL or Parquet")
    group.add_argument("--on-error", choices=("stop", "skip"), default="stop", help="at a bad row (default: stop)")
    group.add_argument("--limit", type=int, metavar="N", help="only the first N requests in arrival order")


def trace_from_args(args: argparse.Namespace) -> Trace:
    """The trace that `args.trace` and the options of `add_trace_options` name; its notes go to stderr."""
    quiet = getattr(args, "quiet", False)
    with progress_bar(f"reading {args.trace}", quiet=quiet) as report:
        trace = load_trace(
            args.trace,
            format=args.format,
            time_unit=args.time_unit,
            id_tokens=args.id_tokens,
            mapping=args.mapping,
            on_error=args.on_error,
            limit=args.limit,
            progress=report,
        )
    if not quiet:
        _say(trace.notes, f"{trace.name}: ")
    return trace


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `kvreplay trace`."""
    commands = parser.add_subparsers(dest="trace_command", required=True, metavar="COMMAND")
    _configure_info(commands)
    _configure_convert(commands)
    _configure_synth(commands)
    _configure_fetch(commands)
    _configure_hash(commands)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand that was parsed; returns the exit status."""
    args.run_trace(args)
    return 0


def _configure_info(commands: Any) -> None:
    about = "rows, span, rates, lengths and prefix sharing of a trace; without one, the names of known traces"
    parser = commands.add_parser("info", help="describe a trace", description=about)
    parser.add_argument("trace", nargs="?", help=_TRACE_HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no messages and no progress bar")
    add_trace_options(parser)
    parser.set_defaults(run_trace=_info)


def _info(args: argparse.Namespace) -> None:
    from ..traces.describe import arrivals_plot, describe

    if args.trace is None:
        _list_names(args.json)
        return
    trace = trace_from_args(args)
    found = describe(trace)
    if args.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        if key != "notes":
            print(f"{key.replace('_', ' '):>24}  {_shown(value)}")
    print(arrivals_plot(trace))


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key} {_shown(item)}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _list_names(as_json: bool) -> None:
    if as_json:
        published = {name: {"about": p.about, "licence": p.licence, "url": p.url} for name, p in PUBLISHED.items()}
        print(json.dumps({"builtin": {name: b.about for name, b in BUILTINS.items()}, "published": published}))
        return
    print("always there:")
    for name, builtin in BUILTINS.items():
        print(f"  {name:<22} {builtin.about}")
    print("after `kvreplay trace fetch NAME`:")
    for name, published in PUBLISHED.items():
        print(f"  {name:<22} {published.about}; {published.licence}")


def _configure_convert(commands: Any) -> None:
    about = "write a trace in another format; what that format cannot hold is said on stderr"
    parser = commands.add_parser("convert", help="write a trace in another format", description=about)
    parser.add_argument("trace", help=_TRACE_HELP)
    parser.add_argument("--to", required=True, choices=(*WRITERS, "parquet"), help="the format to write")
    _add_out(parser)
    add_trace_options(parser)
    parser.set_defaults(run_trace=_convert)


def _convert(args: argparse.Namespace) -> None:
    _write(trace_from_args(args), args.out, args.to, args.quiet)


def _configure_synth(commands: Any) -> None:
    from ..traces.synth import Synth

    about = (
        "Generate chat traffic, the same for the same numbers. Sessions begin as a Poisson process (in "
        "bursts, unless --arrivals poisson) and have a geometric number of turns; each prompt is its app's "
        "system prompt and all that was said before. Lengths are log-normal, think times exponential."
    )
    parser = commands.add_parser("synth", help="generate a trace", description=about)
    for field in fields(Synth):
        option = f"--{field.name.replace('_', '-')}"
        if field.name == "arrivals":
            parser.add_argument(option, choices=("bursty", "poisson"), default=field.default, help="(default: bursty)")
        else:
            parser.add_argument(option, type=type(field.default), default=field.default, help=_SYNTH_HELP[field.name])
    parser.add_argument("--to", default="mooncake", choices=(*WRITERS, "parquet"), help="format (default: mooncake)")
    _add_out(parser)
    parser.set_defaults(run_trace=_synth)


_SYNTH_HELP = {
    "seed": "start of the random numbers (default: %(default)s)",
    "duration": "seconds (default: %(default)s)",
    "requests": "expected number, fewer as sessions are cut off at the end (default: %(default)s)",
    "apps": "applications, each with its system prompt; the k-th has weight 1/k (default: %(default)s)",
    "system_tokens": "mean length of system prompts (default: %(default)s)",
    "user_tokens": "mean length of what a user adds each turn (default: %(default)s)",
    "output_tokens": "mean length of answers (default: %(default)s)",
    "turns": "mean number of turns of a session (default: %(default)s)",
    "think": "mean seconds between an answer's end and the next turn (default: %(default)s)",
    "id_tokens": "tokens a block id stands for (default: %(default)s)",
}


def _synth(args: argparse.Namespace) -> None:
    from ..traces.synth import Synth, synthesize

    what = Synth(**{field.name: getattr(args, field.name) for field in fields(Synth)})
    _write(synthesize(what), args.out, args.to, args.quiet)


def _configure_fetch(commands: Any) -> None:
    about = "download public traces to ~/.cache/kvreplay (or XDG_CACHE_HOME); their names are then TRACEs"
    parser = commands.add_parser("fetch", help="download a public trace", description=about)
    parser.add_argument("name", nargs="+", choices=tuple(PUBLISHED), metavar="NAME", help=", ".join(PUBLISHED))
    parser.add_argument("--quiet", action="store_true", help="no messages and no progress bar")
    parser.set_defaults(run_trace=_fetch)


def _fetch(args: argparse.Namespace) -> None:
    from ..traces.fetch import fetch

    for name in args.name:
        with progress_bar(f"downloading {name}", quiet=args.quiet) as report:
            path, digest = fetch(name, report)
        verified = "as expected" if PUBLISHED[name].sha256 else "unverified: no sum to compare with is known"
        print(
            f"{path}\n  licence {PUBLISHED[name].licence}, from {PUBLISHED[name].url}\n  sha256 {digest} ({verified})"
        )


def _configure_hash(commands: Any) -> None:
    about = (
        "Turn a trace of token ids into one of block ids of N tokens, so that it can be kept or passed on "
        "without its content. With --tokenizer rows have texts `prompt` and `output` instead of token ids."
    )
    parser = commands.add_parser("hash", help="turn token ids or text into block ids", description=about)
    parser.add_argument("trace", help=_TRACE_HELP)
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens an id stands for (default: 16)")
    parser.add_argument(
        "--tokenizer", metavar="NAME", help="tokenizer.json or model name; needs the library tokenizers"
    )
    parser.add_argument("--to", default="mooncake", choices=("mooncake", "bailian", "kvreplay", "parquet"))
    _add_out(parser)
    add_trace_options(parser)
    parser.set_defaults(run_trace=_hash)


def _hash(args: argparse.Namespace) -> None:
    from ..traces.hashing import in_blocks

    trace = _tokenized(args) if args.tokenizer else trace_from_args(args)
    _write(in_blocks(trace, args.block_size), args.out, args.to, args.quiet)


def _tokenized(args: argparse.Namespace) -> Trace:
    """The trace of a file of texts, by way of a temporary file of token ids."""
    import tempfile

    from ..traces.hashing import tokenized, tokenizer
    from ..traces.source import Source

    encode = tokenizer(args.tokenizer)
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file, Source(args.trace, args.trace) as opened:
        for line in tokenized(opened.lines(), opened.name, encode):
            file.write(line)
        file.flush()
        options = {"time_unit": args.time_unit, "on_error": args.on_error, "limit": args.limit}
        try:
            trace = load_trace(file.name, format="tokens", **options)
        except InputError as error:
            raise InputError(str(error).replace(file.name, opened.name)) from None
    return replace(trace, name=opened.name)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", default="-", metavar="FILE", help=".gz and .zst compress (default: stdout)")
    parser.add_argument("--quiet", action="store_true", help="no messages and no progress bar")


def _write(trace: Trace, out: str, format: str, quiet: bool) -> None:
    if out == "-" and format == "parquet" and sys.stdout.isatty():
        raise InputError("--to parquet: expected -o FILE, a terminal cannot show it")
    lost = write_trace(trace, out, format)
    if not quiet:
        _say(lost)


def _say(messages: Sequence[str], before: str = "") -> None:
    for message in messages:
        print(before + message, file=sys.stderr)
