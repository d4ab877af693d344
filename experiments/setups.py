"""Several setups for one trace: files on top of a base, and keys varied over values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sim.settings import Settings
from ..traces.errors import InputError
from .config import assignment_tree, nested, read_yaml, settings_from

Trees = list[tuple[Any, str]]


@dataclass(frozen=True)
class Setup:
    """One of several engines that the same trace goes through."""

    name: str
    """What tells it from the others."""
    settings: Settings


def make_setups(
    config: str | None, assignments: Sequence[str], files: Sequence[str] = (), vary: Sequence[str] = ()
) -> list[Setup]:
    """Return the setups that a command's options name; keys of one engine's scheduler apply where they exist.

    Args:
        config: a YAML file under all of them.
        assignments: `key.path=value`, on top of everything else.
        files: a YAML file each; where there are none and nothing is varied, both engines as they ship.
        vary: `key.path=a,b,...`, each of them multiplying the setups.

    Raises:
        InputError: as `load_settings` does, and for a key without several values.
    """
    below: Trees = [] if config is None else [(read_yaml(config), config)]
    above: Trees = [assignment_tree(assignment) for assignment in assignments]
    named: list[tuple[list[str], Trees]] = [([Path(file).stem], [(read_yaml(file), file)]) for file in files]
    if not named:
        named = [([], [])]
        if not vary:
            vary = ["engine=vllm,sglang"]
    axes = [_axis(text) for text in vary]
    setups: list[Setup] = []
    for (parts, trees), values in itertools.product(named, itertools.product(*axes)):
        names = [*parts, *(name for name, _, _ in values)]
        varied = [(tree, place) for _, tree, place in values]
        setups.append(Setup(" ".join(names), settings_from([*below, *trees, *above, *varied], any_engine=True)))
    return _distinct(setups)


def _axis(text: str) -> list[tuple[str, Any, str]]:
    """The values of one `--vary`: a short name, the tree and its place each."""
    import yaml

    key, sign, values = text.partition("=")
    if not sign or not key or not values:
        raise InputError(f"--vary {text}: expected key.path=a,b,..., such as allocator.block_size=16,32")
    try:
        listed = yaml.safe_load(f"[{values}]")
    except yaml.YAMLError:
        raise InputError(f"--vary {text}: expected values with commas between, such as {key}=16,32") from None
    short = key.rpartition(".")[2]
    axis: list[tuple[str, Any, str]] = []
    for value in listed:
        name = str(value) if key == "engine" else f"{short}={value}"
        axis.append((name, nested(key, value), f"--vary {text}"))
    return axis


def _distinct(setups: list[Setup]) -> list[Setup]:
    """Number the names that would be the same."""
    names = [setup.name for setup in setups]
    return [
        Setup(f"{setup.name} ({names[: place + 1].count(setup.name)})", setup.settings)
        if names.count(setup.name) > 1
        else setup
        for place, setup in enumerate(setups)
    ]
