"""Reading a configuration: YAML files and `key.path=value` settings into checked settings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from ..sim.settings import RooflineSettings, Settings
from ..traces.errors import InputError

_CHOICES = {
    "engine": ("vllm",),
    "allocator.kind": ("block_pool",),
    "scheduler.policy": ("fcfs", "priority"),
    "latency.kind": ("linear", "roofline"),
    "requests.max_new_tokens": ("recorded",),
    "arrivals.sessions": ("open", "closed"),
}
_AT_LEAST = {
    "allocator.block_size": 1,
    "allocator.num_blocks": 2,
    "allocator.capacity_tokens": 1,
    "scheduler.max_num_seqs": 1,
    "scheduler.max_num_batched_tokens": 1,
    "scheduler.max_model_len": 2,
    "scheduler.long_prefill_token_threshold": 0,
    "scheduler.watermark": 0.0,
    "latency.base_ns": 0,
    "latency.prefill_token_ns": 0,
    "latency.decode_seq_ns": 0,
    "latency.context_token_ns": 0,
    **{f"latency.roofline.{field.name}": 0 for field in fields(RooflineSettings)},
}


def load_settings(file: str | None, assignments: Iterable[str], base: Settings | None = None) -> Settings:
    """Return the settings of a YAML file with `key.path=value` assignments on top, checked.

    Args:
        file: path of the YAML file; None for the defaults.
        assignments: as given to `--set`; values are YAML.
        base: what holds where neither says otherwise.

    Raises:
        InputError: a file that cannot be read, an unknown key, a value of the wrong type or out of range.
    """
    settings = base or Settings()
    if file is not None:
        settings = _merge(settings, _read_yaml(file), "", file)
    for assignment in assignments:
        key, sign, text = assignment.partition("=")
        if not sign or not key:
            raise InputError(f"--set {assignment}: expected key.path=value, such as allocator.num_blocks=60000")
        tree: Any = _parse_yaml(text, f"--set {assignment}")
        for part in reversed(key.split(".")):
            tree = {part: tree}
        settings = _merge(settings, tree, "", f"--set {assignment}")
    return settings


def num_blocks(settings: Settings, default_tokens: int | None = None) -> int:
    """Return the blocks of the pool, null block included.

    Args:
        settings: whose `num_blocks` or, after it, `capacity_tokens` decides.
        default_tokens: capacity where neither is given.

    Raises:
        InputError: nothing gives a capacity.
    """
    allocator = settings.allocator
    if allocator.num_blocks is not None:
        return allocator.num_blocks
    tokens = allocator.capacity_tokens or default_tokens
    if tokens is None:
        raise InputError(
            "allocator.num_blocks: no KV-cache capacity is set; give the pool's blocks "
            "(--set allocator.num_blocks=60000) or tokens (--set allocator.capacity_tokens=960000)"
        )
    blocks = tokens // allocator.block_size + 1
    if blocks < 2:
        raise InputError(f"allocator.capacity_tokens: {tokens} is less than one block of {allocator.block_size} tokens")
    return blocks


def with_blocks(settings: Settings, blocks: int) -> Settings:
    """Return the settings with the pool's size spelled out, as a run that is repeated should have it."""
    return replace(settings, allocator=replace(settings.allocator, num_blocks=blocks))


def as_tree(settings: Settings) -> dict[str, Any]:
    """Return settings as nested dictionaries in the order of their keys' definition, unset keys left out."""
    return _without_unset(asdict(settings))


def _without_unset(tree: dict[str, Any]) -> dict[str, Any]:
    kept = {key: _without_unset(value) if isinstance(value, dict) else value for key, value in tree.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


def to_yaml(settings: Settings) -> str:
    """Return settings as the text of a configuration file."""
    import yaml

    return yaml.safe_dump(as_tree(settings), sort_keys=False)


def _read_yaml(file: str) -> Any:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{file}: no such file (expected a YAML configuration)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as a YAML configuration: {error}") from None
    return _parse_yaml(text, file)


def _parse_yaml(text: str, place: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{place}{line}: not valid YAML: {problem}") from None


def _merge(settings: Any, tree: Any, path: str, place: str) -> Any:
    """Return the dataclass `settings` with the values of `tree`, whose keys begin with `path`."""
    if tree is None:
        return settings
    if not isinstance(tree, Mapping):
        raise InputError(f"{place}: {path or 'the file'} must hold keys and values, not {tree!r}")
    known = {field.name: field for field in fields(settings)}
    hints = get_type_hints(type(settings))
    changes: dict[str, Any] = {}
    for key, value in tree.items():
        full = f"{path}.{key}" if path else str(key)
        if key not in known:
            raise InputError(f"{place}: unknown key {full}{_suggestion(full)}")
        current = getattr(settings, str(key))
        if is_dataclass(current):
            changes[str(key)] = _merge(current, value, full, place)
        else:
            changes[str(key)] = _checked(full, value, hints[str(key)], place)
    return replace(settings, **changes)


def _suggestion(key: str) -> str:
    near = difflib.get_close_matches(key, _all_keys(Settings()), n=1, cutoff=0.5)
    # A key given without its section is found by its last part.
    near = near or [known for known in _all_keys(Settings()) if known.split(".")[-1] == key.split(".")[-1]]
    return f"; did you mean {near[0]}?" if near else f"; known keys are {', '.join(_all_keys(Settings()))}"


def _all_keys(settings: Any, path: str = "") -> list[str]:
    keys: list[str] = []
    for field in fields(settings):
        value, full = getattr(settings, field.name), f"{path}{field.name}"
        keys += _all_keys(value, f"{full}.") if is_dataclass(value) else [full]
    return keys


def _checked(key: str, value: Any, hint: Any, place: str) -> Any:
    kinds = get_args(hint) or (hint,)
    if value is None and type(None) in kinds:
        return None
    if float in kinds and int not in kinds and type(value) is int:
        value = float(value)
    # bool is a subclass of int, hence no isinstance.
    if type(value) not in kinds or not _in_range(key, value):
        raise InputError(f"{place}: {key}: expected {_describe(key, cast(type, kinds[0]))}, got {value!r}")
    return value


def _in_range(key: str, value: Any) -> bool:
    if key in _CHOICES:
        return value in _CHOICES[key]
    if key == "arrivals.scale":
        return 0 < value < float("inf")
    if key == "requests.max_new_tokens":
        return value == "recorded" if isinstance(value, str) else value >= 1
    return key not in _AT_LEAST or bool(value >= _AT_LEAST[key])


def _describe(key: str, kind: type) -> str:
    if key in _CHOICES:
        return " or ".join(_CHOICES[key])
    if key == "arrivals.scale":
        return "a number above 0"
    if key == "requests.max_new_tokens":
        return "recorded or a whole number of at least 1"
    noun = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}[kind]
    return f"{noun} of at least {_AT_LEAST[key]}" if key in _AT_LEAST else noun
