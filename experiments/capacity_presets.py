"""Presets of models and GPUs: YAML files in the package, found by name."""

from __future__ import annotations

import json
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ..traces.errors import InputError


def preset_names(kind: str) -> list[str]:
    """Return the names of the presets of `kind`: models or gpus."""
    return sorted(file.name.removesuffix(".yaml") for file in _folder(kind).iterdir() if file.name.endswith(".yaml"))


def read_preset(kind: str, name: str, key: str) -> tuple[dict[str, Any], str]:
    """Return the content of a preset, or of a file of one's own (YAML or JSON), and the place it came from.

    Args:
        kind: models or gpus.
        name: a preset's name, the full name that it carries, or a path.
        key: the setting or option that named it, for messages.

    Raises:
        InputError: there is no such preset or file, or it holds no keys and values.
    """
    wanted = _plain(name)
    for preset in preset_names(kind):
        text = (_folder(kind) / f"{preset}.yaml").read_text(encoding="utf-8")
        content = _parsed(text, preset)
        full = str(content["name"])
        # Both the whole name and what follows the owner in it.
        if wanted in (_plain(preset), _plain(full), _plain(full.split("/")[-1])):
            return content, preset
    path = Path(name)
    if not path.is_file():
        raise InputError(
            f"{key}: {name}: no such preset or file; presets are {', '.join(preset_names(kind))}, "
            f"files are {'a Hugging Face config.json' if kind == 'models' else 'YAML as in the presets'}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{key}: {name}: cannot be read: {error}") from None
    return _parsed(text, name), name


def positive(content: dict[str, Any], key: str, place: str, default: float | None = None) -> float:
    """Return the number above 0 under `key`, which may be absent only where there is a default."""
    value = content.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise InputError(f"{place}: {key}: expected a number above 0, got {value!r}")
    return value


def count(content: dict[str, Any], key: str, place: str, default: int | None = None) -> int:
    """Return the whole number above 0 under `key`, which may be absent only where there is a default."""
    value = positive(content, key, place, default)
    if value != int(value):
        raise InputError(f"{place}: {key}: expected a whole number above 0, got {value!r}")
    return int(value)


def _folder(kind: str) -> Traversable:
    return resources.files(__package__ or __name__.rpartition(".")[0]) / "presets" / kind


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")


def _parsed(text: str, place: str) -> dict[str, Any]:
    import yaml

    try:
        content = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        problem = str(error).splitlines()[0]
        raise InputError(f"{place}: neither YAML nor JSON: {problem}") from None
    if not isinstance(content, dict):
        raise InputError(f"{place}: expected keys and values, got {type(content).__name__}")
    return content
