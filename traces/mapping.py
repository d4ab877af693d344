"""A column mapping: the user's own YAML says which field means what."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from .errors import InputError
from .layout import Layout
from .times import TIME_UNITS

_COLUMNS = (
    "arrival",
    "prompt_tokens",
    "output_tokens",
    "block_ids",
    "covered_tokens",
    "prompt_token_ids",
    "output_token_ids",
    "session",
    "row_id",
    "parent",
    "think",
    "kind",
    "priority",
)
_KEYS = ("columns", "time_unit", "id_tokens", "zero_output_failed")


def layout_from_mapping(mapping: str | Path | dict[str, Any]) -> Layout:
    """The layout that a mapping (a YAML file or its content) describes.

    Raises:
        InputError: naming the file and the key that is wrong.
    """
    place, content = ("mapping", mapping) if isinstance(mapping, dict) else (str(mapping), _read(mapping))
    if not isinstance(content, dict):
        raise InputError(f"{place}: expected keys and values: {', '.join(_KEYS)}")
    _check_keys(content, _KEYS, place)
    columns = content.get("columns")
    if not isinstance(columns, dict):
        raise InputError(f"{place}: columns: expected a name for each of {', '.join(_COLUMNS)} that the file has")
    _check_keys(columns, _COLUMNS, f"{place}: columns")
    for key, value in columns.items():
        if not isinstance(value, str):
            raise InputError(f"{place}: columns.{key}: got {value!r}, expected the name of a column")
    _check_complete(columns, content, place)
    return Layout(
        name=place,
        container="jsonl",
        time_unit=content.get("time_unit", "s"),
        id_tokens=1 if "prompt_token_ids" in columns else content.get("id_tokens", 0),
        zero_output_failed=content.get("zero_output_failed", False),
        **columns,
    )


def _read(path: str | Path) -> object:
    import yaml

    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def _check_keys(given: dict[Any, Any], known: tuple[str, ...], place: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1, 0)
            raise InputError(f"{place}: unknown key '{key}', did you mean '{near[0]}'?")


def _check_complete(columns: dict[str, str], content: dict[str, Any], place: str) -> None:
    if "arrival" not in columns:
        raise InputError(f"{place}: columns.arrival: missing, expected the column with the arrival time")
    needed = [] if "prompt_token_ids" in columns else ["prompt_tokens"]
    needed += [] if "output_token_ids" in columns and not needed else ["output_tokens"]
    for key in needed:
        if key not in columns:
            raise InputError(f"{place}: columns.{key}: missing, expected the column with that number")
    unit, id_tokens = content.get("time_unit", "s"), content.get("id_tokens")
    if unit not in TIME_UNITS:
        raise InputError(f"{place}: time_unit: got {unit!r}, expected one of {', '.join(TIME_UNITS)}")
    if ("block_ids" in columns or id_tokens is not None) and (type(id_tokens) is not int or id_tokens < 1):
        raise InputError(f"{place}: id_tokens: got {id_tokens!r}, expected the tokens a block id stands for")
    if not isinstance(content.get("zero_output_failed", False), bool):
        raise InputError(f"{place}: zero_output_failed: expected true or false")
    if ("parent" in columns) != ("row_id" in columns):
        raise InputError(f"{place}: columns.parent and columns.row_id: one is given, expected both or none")
