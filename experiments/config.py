"""Reading a configuration: YAML files and `key.path=value` settings into checked settings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from ..sim.settings import AllocatorSettings, RooflineSettings, SchedulerSettings, Settings, SglangSettings
from ..traces.errors import InputError

_SLOTS = ("token_slots", "paged_slots")
_CHOICES = {
    "engine": ("vllm", "sglang"),
    "allocator.kind": ("block_pool", *_SLOTS, "contiguous"),
    "scheduler.schedule_policy": ("fcfs", "lpm"),
    "scheduler.radix_eviction_policy": ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru"),
    "scheduler.policy": ("fcfs", "priority"),
    "latency.kind": ("linear", "roofline", "profile", "aic", "auto"),
    "kv_cache_dtype": ("auto", "fp8"),
    "arrivals.sessions": ("open", "closed"),
}
_SHARES = ("gpu_memory_utilization", "mem_fraction_static")
_AT_LEAST = {
    "allocator.block_size": 1,
    "allocator.num_blocks": 2,
    "allocator.num_slots": 1,
    "allocator.capacity_tokens": 1,
    "scheduler.max_num_seqs": 1,
    "scheduler.max_num_batched_tokens": 1,
    "scheduler.max_model_len": 2,
    "scheduler.long_prefill_token_threshold": 0,
    "scheduler.watermark": 0.0,
    "scheduler.max_prefill_tokens": 1,
    "scheduler.schedule_conservativeness": 0.0,
    "scheduler.max_running_requests": 1,
    "scheduler.context_length": 8,
    "scheduler.clip_max_new_tokens_estimation": 0,
    "latency.base_ns": 0,
    "latency.prefill_token_ns": 0,
    "latency.decode_seq_ns": 0,
    "latency.context_token_ns": 0,
    **{f"latency.roofline.{field.name}": 0 for field in fields(RooflineSettings)},
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "reserve_gib": 0,
}


_AT_MOST = {
    "allocator.num_blocks": 1_000_000_000,
    "allocator.num_slots": 1_000_000_000,
    "allocator.capacity_tokens": 1_000_000_000_000,
    "scheduler.watermark": 1.0,
    "scheduler.schedule_conservativeness": 1_000.0,
    **dict.fromkeys(
        (f"latency.{name}" for name in ("base_ns", "prefill_token_ns", "decode_seq_ns", "context_token_ns")),
        1_000_000_000_000,
    ),
}
"""Far beyond anything real, and such that no sum overflows."""


def load_settings(file: str | None, assignments: Iterable[str], base: Settings | None = None) -> Settings:
    """Return the settings of a YAML file with `key.path=value` assignments on top, checked.

    Args:
        file: path of the YAML file; None for the defaults.
        assignments: as given to `--set`; values are YAML.
        base: what holds where neither says otherwise.

    Raises:
        InputError: a file that cannot be read, an unknown key, a value of the wrong type or out of range.
    """
    trees = [] if file is None else [(read_yaml(file), file)]
    trees += [assignment_tree(assignment) for assignment in assignments]
    return settings_from(trees, base)


def settings_from(trees: list[tuple[Any, str]], base: Settings | None = None, *, any_engine: bool = False) -> Settings:
    """Return the settings of several configurations, each on top of those before it, checked.

    Args:
        trees: nested keys and values as in a file, each with its place for messages.
        base: what holds where none says otherwise.
        any_engine: whether keys of the other engine's scheduler are passed over; they are errors if not.

    Raises:
        InputError: an unknown key, a value of the wrong type or out of range.
    """
    settings = base or _defaults(_engine(trees))
    automatic = False
    for tree, place in trees:
        tree, automatic = _take_auto(_one_name(tree), automatic)
        if any_engine:
            tree = _without_others(tree, settings.engine)
        settings = _merge(settings, tree, "", place, settings.engine)
    if automatic:
        from .capacity_settings import with_preferred_block_size

        settings = with_preferred_block_size(settings)
    return _one_capacity(_with_kind(settings, trees), trees)


def _without_others(tree: Any, engine: str) -> Any:
    """The tree without what only the other engine's scheduler has."""
    section = tree.get("scheduler") if isinstance(tree, Mapping) else None
    if not isinstance(section, Mapping):
        return tree
    own = {field.name for field in fields(_defaults(engine).scheduler)}
    kept = {key: value for key, value in section.items() if key in own or _owner(f"scheduler.{key}") is None}
    return {**tree, "scheduler": kept}


def assignment_tree(assignment: str) -> tuple[Any, str]:
    """Return a `key.path=value` as nested keys and values, and its place for messages."""
    key, sign, text = assignment.partition("=")
    place = f"--set {assignment}"
    if not sign or not key:
        raise InputError(f"{place}: expected key.path=value, such as allocator.num_blocks=60000")
    return nested(key, _parse_yaml(text, place)), place


def nested(key: str, value: Any) -> Any:
    """Return `value` under the dotted path `key`, as a file would have it."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _engine(trees: list[tuple[Any, str]]) -> str:
    """The engine that is asked for in the end; what is not one is found out later."""
    named = [tree["engine"] for tree, _ in trees if isinstance(tree, Mapping) and "engine" in tree]
    return "sglang" if named and named[-1] == "sglang" else "vllm"


def _defaults(engine: str) -> Settings:
    if engine == "sglang":
        return Settings(
            engine="sglang",
            allocator=AllocatorSettings(kind="token_slots", block_size=1),
            scheduler=SglangSettings(),
        )
    return Settings()


def _given(trees: list[tuple[Any, str]], *keys: str) -> bool:
    """Whether any of the allocator's `keys` is set anywhere."""
    sections = [tree.get("allocator") for tree, _ in trees if isinstance(tree, Mapping)]
    return any(isinstance(section, Mapping) and key in section for section in sections for key in keys)


def _one_name(tree: Any) -> Any:
    """`page_size` is `block_size` under its other name."""
    section = tree.get("allocator") if isinstance(tree, Mapping) else None
    if not isinstance(section, Mapping) or "page_size" not in section:
        return tree
    renamed = {"block_size" if key == "page_size" else key: value for key, value in section.items()}
    return {**tree, "allocator": renamed}


def _take_auto(tree: Any, before: bool) -> tuple[Any, bool]:
    """Return the tree without `block_size: auto`, and whether that is what holds now, as it did `before`."""
    section = tree.get("allocator") if isinstance(tree, Mapping) else None
    if not isinstance(section, Mapping) or "block_size" not in section:
        return tree, before
    if section["block_size"] != "auto":
        return tree, False
    return {**tree, "allocator": {key: value for key, value in section.items() if key != "block_size"}}, True


def _one_capacity(settings: Settings, trees: list[tuple[Any, str]]) -> Settings:
    """Turn a capacity under the other engine's name into tokens."""
    allocator = settings.allocator
    if settings.engine == "sglang" and allocator.num_blocks is not None and allocator.num_slots is None:
        # A pool of blocks was meant, whose size is vLLM's own unless one is given.
        size = allocator.block_size if _given(trees, "block_size", "page_size") else AllocatorSettings().block_size
        tokens = (allocator.num_blocks - 1) * size
        allocator = replace(allocator, num_blocks=None, num_slots=tokens)
    elif settings.engine == "vllm" and allocator.num_slots is not None and allocator.num_blocks is None:
        blocks = allocator.num_slots // allocator.block_size + 1
        allocator = replace(allocator, num_slots=None, num_blocks=blocks)
    return replace(settings, allocator=allocator)


def _with_kind(settings: Settings, trees: list[tuple[Any, str]]) -> Settings:
    """Settle the allocator's kind, by engine and page size where it is not given, and the kind's own block size."""
    allocator, engine = settings.allocator, settings.engine
    if not _given(trees, "kind"):
        return replace(settings, allocator=replace(allocator, kind=_own_kind(settings)))
    kind, size, default = allocator.kind, allocator.block_size, _defaults(engine).allocator.block_size
    if size == default and not _given(trees, "block_size", "page_size") and kind != "paged_slots":
        size = 1 if kind == "token_slots" else AllocatorSettings().block_size
    if kind in _SLOTS and (kind == "token_slots") != (size == 1):
        other = _SLOTS[kind == "token_slots"]
        raise InputError(f"allocator.kind: {kind} does not go with pages of {size} tokens; expected {other}")
    if kind == "contiguous":
        if engine != "vllm":
            raise InputError(f"allocator.kind: contiguous goes with engine vllm, not with {engine}")
        allocator = replace(allocator, prefix_caching=False)
    return replace(settings, allocator=replace(allocator, block_size=size))


def _own_kind(settings: Settings) -> str:
    """The allocator that an engine ships."""
    return _SLOTS[settings.allocator.block_size > 1] if settings.engine == "sglang" else "block_pool"


def exact(settings: Settings) -> bool:
    """Whether an engine is simulated as it is: its scheduler with its own allocator."""
    return settings.allocator.kind == _own_kind(settings)


def engine_capacity(settings: Settings, default_tokens: int | None = None) -> int:
    """Return vLLM's `num_blocks` (null block included) or SGLang's `num_slots` (whole pages, padding not counted).

    Args:
        settings: whose `num_blocks` or `num_slots` decides; after these `capacity_tokens`; after it `model` and `gpu`.
        default_tokens: capacity where none is given.

    Raises:
        InputError: nothing gives a capacity, or it is less than one block.
    """
    allocator, slots = settings.allocator, settings.engine == "sglang"
    given = allocator.num_slots if slots else allocator.num_blocks
    if given is not None and not slots:
        return given
    tokens = given or allocator.capacity_tokens
    if tokens is None and settings.model is not None and settings.gpu is not None:
        from .capacity_settings import fitting_tokens

        tokens = fitting_tokens(settings)
    tokens = tokens or default_tokens
    if tokens is None:
        own = "num_slots=960000" if slots else "num_blocks=60000"
        raise InputError(
            f"allocator.{own.partition('=')[0]}: no KV-cache capacity is set; give it as the engine has it "
            f"(--set allocator.{own}), in tokens (--set allocator.capacity_tokens=960000), or give model and gpu"
        )
    if tokens < allocator.block_size:
        raise InputError(f"allocator: a capacity of {tokens} tokens is less than one block of {allocator.block_size}")
    blocks = tokens // allocator.block_size
    return blocks * allocator.block_size if slots else blocks + 1


def with_capacity(settings: Settings, capacity: int) -> Settings:
    """Return the settings with `num_blocks` or `num_slots` spelled out, as a run that is repeated should have it."""
    name = "num_slots" if settings.engine == "sglang" else "num_blocks"
    return replace(settings, allocator=replace(settings.allocator, **{name: capacity}))


def as_tree(settings: Settings) -> dict[str, Any]:
    """Return settings as nested dictionaries in the order of their keys' definition, unset keys left out."""
    tree = _without_unset(asdict(settings))
    if settings.engine == "sglang":
        tree["allocator"] = {
            "page_size" if key == "block_size" else key: value
            for key, value in tree["allocator"].items()
            if key != "prefix_caching"
        }
    return tree


def _without_unset(tree: dict[str, Any]) -> dict[str, Any]:
    kept = {key: _without_unset(value) if isinstance(value, dict) else value for key, value in tree.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


def to_yaml(settings: Settings) -> str:
    """Return settings as the text of a configuration file."""
    import yaml

    return yaml.safe_dump(as_tree(settings), sort_keys=False)


def read_yaml(file: str) -> Any:
    """Return the content of a YAML file.

    Raises:
        InputError: it cannot be read, or is not YAML; the message names the line.
    """
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
        return yaml.load(text, _unique_keys())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{place}{line}: not valid YAML: {problem}") from None


def _unique_keys() -> Any:
    """A safe YAML loader that refuses a key given twice, of which the last would silently win."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value} is given twice", problem_mark=key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader


def _merge(settings: Any, tree: Any, path: str, place: str, engine: str) -> Any:
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
            raise InputError(f"{place}: unknown key {full}{_suggestion(full, engine)}")
        current = getattr(settings, str(key))
        if is_dataclass(current):
            changes[str(key)] = _merge(current, value, full, place, engine)
        else:
            changes[str(key)] = _checked(full, value, hints[str(key)], place)
    return replace(settings, **changes)


def _suggestion(key: str, engine: str) -> str:
    owner = _owner(key)
    if owner is not None and owner != engine:
        return f", which is a setting of engine {owner}, not of {engine}"
    known_keys = _all_keys(_defaults(engine))
    near = difflib.get_close_matches(key, known_keys, n=1, cutoff=0.5)
    # A key given without its section is found by its last part.
    near = near or [known for known in known_keys if known.split(".")[-1] == key.split(".")[-1]]
    return f"; did you mean {near[0]}?" if near else f"; known keys are {', '.join(known_keys)}"


def _owner(key: str) -> str | None:
    """The engine whose scheduler has a setting of this name."""
    section, _, name = key.partition(".")
    if section == "scheduler":
        for engine, kind in (("vllm", SchedulerSettings), ("sglang", SglangSettings)):
            if name in {field.name for field in fields(kind)}:
                return engine
    return None


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
    if float in kinds and int not in kinds and type(value) in (int, str):
        value = _as_float(value)
    # bool is a subclass of int, hence no isinstance.
    if type(value) not in kinds or not _in_range(key, value):
        raise InputError(f"{place}: {key}: expected {_describe(key, cast(type, kinds[0]))}, got {value!r}")
    return value


def _as_float(value: Any) -> Any:
    """A whole number, or one such as 1e-9, which YAML takes for text, as a float; anything else as it is."""
    try:
        return float(value)
    except (ValueError, OverflowError):
        return value


def _in_range(key: str, value: Any) -> bool:
    if key in _CHOICES:
        return value in _CHOICES[key]
    if key == "arrivals.scale":
        return 0 < value < float("inf")
    if key in _SHARES:
        return 0 < value <= 1
    if key == "requests.max_new_tokens":
        return value == "recorded" if isinstance(value, str) else value >= 1
    if key in _AT_MOST and not value <= _AT_MOST[key]:
        return False
    return key not in _AT_LEAST or bool(value >= _AT_LEAST[key])


def _describe(key: str, kind: type) -> str:
    if key in _CHOICES:
        return " or ".join(_CHOICES[key])
    if key == "arrivals.scale":
        return "a number above 0"
    if key in _SHARES:
        return "a share above 0 and at most 1"
    if key == "requests.max_new_tokens":
        return "recorded or a whole number of at least 1"
    noun = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}[kind]
    if key in _AT_MOST:
        return f"{noun} from {_AT_LEAST[key]} to {_AT_MOST[key]}"
    return f"{noun} of at least {_AT_LEAST[key]}" if key in _AT_LEAST else noun
