"""The options that give tokens a size in bytes."""

from __future__ import annotations

import argparse


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """Add `--model` and `--bytes-per-token`."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--model", metavar="NAME", help="a preset or a config.json, to have bytes beside tokens")
    size.add_argument("--bytes-per-token", type=float, metavar="B", help="of the KV cache, for the same")


def bytes_per_token(args: argparse.Namespace) -> float | None:
    """Return the bytes of KV cache that a token takes, None where nothing says so.

    Raises:
        InputError: there is no such model.
    """
    if args.model is None:
        return args.bytes_per_token
    from .capacity_memory import Deployment, token_bytes
    from .capacity_model import load_model

    return token_bytes(load_model(args.model, "--model"), Deployment())
