"""The `kvreplay` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..traces.errors import InputError

COMMANDS = {
    "calibrate": "fit the step time to a recorded run of a real engine",
    "capacity": "bytes a token, blocks and concurrent requests for models and GPUs",
    "compare": "simulate one trace on several setups, side by side",
    "curve": "prefix-cache hit rate against KV capacity, for every capacity at once",
    "kernels": "run the kernels that use block tables on a replay's layout: validate, bench",
    "plan": "the least memory or the highest load that meets objectives",
    "replay": "simulate one trace on one engine",
    "report": "figures and one self-contained page from run folders",
    "sweep": "a grid of replays, over processes or a cluster; resumable",
    "trace": "describe, convert, generate, download and hash traces",
    "verify": "hold a replay against a recorded run of a real engine",
}
"""Each is the module `NAME_command` beside this one, imported only when it runs."""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong option as every other wrong input: one line, status 2."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see `{self.prog} --help`)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return the exit status: 0, 1, 2 (wrong input) or 130 (interrupted)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print(
            "error: not enough memory here for this trace and this capacity; make one of them smaller", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has had enough of it, as in `kvreplay ... | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    parser = _Parser(
        prog="kvreplay",
        description="Replay recorded LLM traffic through the KV-cache allocators of serving engines.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((argument for argument in arguments if argument in COMMANDS), None)
    module = None
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == chosen:
            module = importlib.import_module(f".{name}_command", __package__)
            module.configure(command)
    args = parser.parse_args(arguments)
    assert module is not None, "a command that parses is one of COMMANDS"
    return module.run(args)
