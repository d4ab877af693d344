"""What a sweep consists of: a file or dictionary with traces, a base configuration and axes, into cells."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sim.settings import Settings
from ..traces.errors import InputError
from .config import assignment_tree, nested, read_yaml, settings_from

_KEYS = ("trace", "traces", "limit", "base", "axes", "zip", "cells")
_FORMS = ("axes", "zip", "cells")


@dataclass(frozen=True)
class Cell:
    """One replay of a sweep."""

    number: int
    trace: str
    values: dict[str, Any]
    """What was varied, by dotted key."""
    settings: Settings

    @property
    def name(self) -> str:
        """For people."""
        varied = ", ".join(f"{key}={value}" for key, value in self.values.items())
        return f"cell {self.number} ({self.trace}{', ' if varied else ''}{varied})"


@dataclass(frozen=True)
class Specification:
    """A whole sweep."""

    traces: tuple[str, ...]
    limit: int | None
    cells: tuple[Cell, ...]
    tree: dict[str, Any]
    """All that decides what the cells compute, ready for JSON: the same tree is the same sweep."""

    @property
    def varied(self) -> list[str]:
        """The dotted keys that tell cells apart, `trace` first where there are several."""
        keys = dict.fromkeys(key for cell in self.cells for key in cell.values)
        return [*(["trace"] if len(self.traces) > 1 else []), *keys]


def read_specification(
    source: str | Path | Mapping[str, Any], assignments: Sequence[str] = (), limit: int | None = None
) -> Specification:
    """Return the sweep that a YAML file, or its content, describes.

    Args:
        source: with `trace` or `traces`, `limit`, `base`, and one of `axes` (all combinations), `zip` (lists of one
            length, taken together) and `cells` (a list of settings by dotted key).
        assignments: `key.path=value` that hold for all cells, over the base.
        limit: first so many requests of each trace, over the source's.

    Raises:
        InputError: anything in it that is wrong, with the place.
    """
    place = "sweep" if isinstance(source, Mapping) else str(source)
    tree = dict(source) if isinstance(source, Mapping) else read_yaml(str(source))
    if not isinstance(tree, Mapping):
        raise InputError(f"{place}: must hold keys and values: {', '.join(_KEYS)}")
    unknown = [key for key in tree if key not in _KEYS]
    if unknown:
        raise InputError(f"{place}: unknown key {unknown[0]}; known keys are {', '.join(_KEYS)}")
    traces = _traces(tree, place)
    limit = _limit(tree.get("limit"), place) if limit is None else limit
    base = [(tree.get("base"), place), *(assignment_tree(assignment) for assignment in assignments)]
    cells: list[Cell] = []
    for trace, values in itertools.product(traces, _combinations(tree, place)):
        trees = [*base, *((nested(key, value), f"{place}: {key}={value}") for key, value in values.items())]
        cells.append(Cell(len(cells), trace, values, settings_from(trees, any_engine=True)))
    whole = {
        "traces": list(traces),
        "limit": limit,
        "base": tree.get("base") or {},
        "set": list(assignments),
        "cells": [cell.values for cell in cells],
    }
    return Specification(traces, limit, tuple(cells), whole)


def _traces(tree: Mapping[str, Any], place: str) -> tuple[str, ...]:
    if ("trace" in tree) == ("traces" in tree):
        raise InputError(f"{place}: expected one of trace (a path or name) and traces (a list of them)")
    traces = [tree["trace"]] if "trace" in tree else tree["traces"]
    if not isinstance(traces, list) or not traces or not all(isinstance(trace, str) for trace in traces):
        raise InputError(f"{place}: traces: expected a list of paths or names, got {traces!r}")
    if len(set(traces)) < len(traces):
        raise InputError(f"{place}: traces: each must be there once")
    return tuple(traces)


def _limit(value: Any, place: str) -> int | None:
    if value is None or (type(value) is int and value >= 1):
        return value
    raise InputError(f"{place}: limit: expected a whole number of at least 1, got {value!r}")


def _combinations(tree: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """The values of each cell, for one trace."""
    forms = [form for form in _FORMS if form in tree]
    if len(forms) > 1:
        raise InputError(f"{place}: {' and '.join(forms)}: expected one of them")
    if not forms:
        return [{}]
    form, content = forms[0], tree[forms[0]]
    if form == "cells":
        if not isinstance(content, list) or not content or not all(isinstance(cell, Mapping) for cell in content):
            raise InputError(f"{place}: cells: expected a list of settings such as {{allocator.block_size: 16}}")
        return [dict(cell) for cell in content]
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{place}: {form}: expected keys with a list of values each")
    for key, values in content.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{place}: {form}.{key}: expected a list of values, got {values!r}")
    lengths = {key: len(values) for key, values in content.items()}
    if form == "zip" and len(set(lengths.values())) > 1:
        raise InputError(f"{place}: zip: expected lists of one length, got {lengths}")
    rows = zip(*content.values(), strict=True) if form == "zip" else itertools.product(*content.values())
    return [dict(zip(content, row, strict=True)) for row in rows]
