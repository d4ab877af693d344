#!/usr/bin/env python3
"""Record what vLLM 0.32.0's own scheduler and block pool do with the scenarios of `scenarios.py`.

The classes are those of the released wheel, driven on a CPU in virtual time: no model is loaded, and a step
takes what the linear step time says. Each scenario becomes NAME.npz (arrays) and NAME.json (settings, and how
often each event of interest came up); `recording_format.py`, one folder up, says what the arrays mean.

The environment, once (a virtual environment of its own, Python 3.11, Linux):

    pip install torch==2.13.0
    pip install --no-deps vllm==0.32.0
    pip install -r requirements.txt

vLLM's package imports more than its scheduler needs. `requirements.txt` has what is imported and easily had;
the rest of that chain (`STAND_INS`) is replaced by empty modules. Then, from any folder:

    python record_vllm.py                     all scenarios, written beside this file
    python record_vllm.py sync_fcfs --out DIR
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import types
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
from scenarios import SCENARIOS, Drawn, Scenario, draw

# ---------------------------------------------------------------------- making vLLM importable

STAND_INS = frozenset(("xgrammar", "llguidance", "outlines_core", "lmformatenforcer", "cv2", "mistral_common"))
"""Top-level packages of grammars, images and tokenizers."""

_scratch = tempfile.TemporaryDirectory(prefix="record_vllm_")
SCRATCH = Path(_scratch.name)
"""The model's folder and the engine's caches; gone when the program ends."""


class _StandIn(types.ModuleType):
    """A module in which every public name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports from `STAND_INS`, whether or not the package is installed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.insert(0, _StandInFinder())
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CACHE_ROOT": str(SCRATCH),
    "VLLM_CONFIG_ROOT": str(SCRATCH),
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the configuration of V2 asks for Triton; see build_scheduler
}

import torch  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig  # noqa: E402
from vllm.model_executor.models import registry  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

# ---------------------------------------------------------------------- the engine's scheduler


def write_model(folder: Path) -> None:
    """A config.json of the smallest decoder: the engine insists on one, and no number depends on it."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 1 << 20,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": 1 << 20,
    }
    (folder / "config.json").write_text(json.dumps(config))


def skip_model_inspection() -> None:
    """Answer the engine's question about the model class, which it would import with all its kernels."""
    facts: dict[str, Any] = dict.fromkeys(registry._ModelInfo.__dataclass_fields__, False)
    facts |= {
        "architecture": "LlamaForCausalLM",
        "is_text_generation_model": True,
        "attn_type": "decoder",
        "default_seq_pooling_type": "LAST",
        "default_tok_pooling_type": "ALL",
        "score_type": "bi-encoder",
        "supported_video_pruning_methods": (),
    }
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo(**facts)


def build_scheduler(settings: dict[str, Any]) -> Scheduler:
    """The scheduler as an engine with these settings would build it, with one full-attention group."""
    skip_model_inspection()
    write_model(SCRATCH)
    max_model_len = settings["max_model_len"]
    model = ModelConfig(model=str(SCRATCH), skip_tokenizer_init=True, dtype="float16", max_model_len=max_model_len)
    scheduling = SchedulerConfig(
        max_model_len=max_model_len,
        is_encoder_decoder=False,
        max_num_seqs=settings["max_num_seqs"],
        max_num_batched_tokens=settings["max_num_batched_tokens"],
        long_prefill_token_threshold=settings["long_prefill_token_threshold"],
        scheduler_reserve_full_isl=settings["scheduler_reserve_full_isl"],
        watermark=settings["watermark"],
        policy=settings["policy"],
        async_scheduling=settings["async_scheduling"],
    )
    cache = CacheConfig(block_size=settings["block_size"], enable_prefix_caching=settings["prefix_caching"])
    cache.num_gpu_blocks = settings["num_blocks"]
    config = VllmConfig(
        model_config=model,
        scheduler_config=scheduling,
        cache_config=cache,
        device_config=DeviceConfig(device="cpu"),
    )
    attention = FullAttentionSpec(block_size=settings["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float16)
    kv_cache = KVCacheConfig(
        num_blocks=settings["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
    )
    kind = AsyncScheduler if settings["async_scheduling"] else Scheduler
    scheduler = kind(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=settings["block_size"],
        hash_block_size=settings["block_size"],
    )
    scheduler.use_v2_model_runner = True  # what a GPU server uses
    return scheduler


def linear_step_ns(prefill_tokens: int, decode_seqs: int, context_tokens: int) -> int:
    """The step time of all recordings; a step that schedules nothing takes none."""
    if prefill_tokens == 0 and decode_seqs == 0:
        return 0
    return 5_000_000 + 20_000 * prefill_tokens + 50_000 * decode_seqs + 20 * context_tokens


# ---------------------------------------------------------------------- listening in


class Listener:
    """Taps the scheduler's inner calls for what its outputs do not tell."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.events: Counter[str] = Counter()
        self.preempted: list[int] = []
        """In this step, in order."""
        self.evicted = 0
        """In this step."""
        self.given_slots: set[str] = set()
        """Running requests that this step has already served."""
        self.scheduler = scheduler
        self.pool = scheduler.kv_cache_manager.block_pool
        self._tap(scheduler, "_preempt_request", self._before_preemption)
        self._tap(self.pool, "_insert_block_hash", self._before_hashing)
        self._tap(self.pool, "_maybe_evict_cached_block", after=self._after_eviction)
        self._tap(scheduler.kv_cache_manager, "allocate_slots", after=self._after_allocation)

    @staticmethod
    def _tap(owner: Any, name: str, before: Any = None, after: Any = None) -> None:
        """Call `before` with a method's arguments, `after` with its result and them."""
        method = getattr(owner, name)

        def tapped(*args: Any, **kwargs: Any) -> Any:
            if before:
                before(*args, **kwargs)
            result = method(*args, **kwargs)
            if after:
                after(result, *args, **kwargs)
            return result

        setattr(owner, name, tapped)

    def start_step(self) -> None:
        self.preempted = []
        self.evicted = 0
        self.given_slots = set()

    def _before_preemption(self, request: Request, *_: Any, **__: Any) -> None:
        self.preempted.append(int(request.request_id))
        self.events["preemptions"] += 1
        self.events["victims_already_scheduled"] += request.request_id in self.given_slots
        self.events["stale_preemptions"] += request.num_in_flight_tokens > 0

    def _before_hashing(self, block_hash: Any, *_: Any, **__: Any) -> None:
        known = self.pool.cached_block_hash_to_block.get_one_block(block_hash)
        self.events["duplicates"] += known is not None

    def _after_eviction(self, evicted: bool, *_: Any) -> None:
        self.evicted += evicted
        self.events["evictions"] += evicted

    def _after_allocation(self, blocks: Any, request: Request, *_: Any, **__: Any) -> None:
        if blocks is not None and request.status == RequestStatus.RUNNING:
            self.given_slots.add(request.request_id)


# ---------------------------------------------------------------------- the recording's columns


class Columns:
    """The arrays of a recording, grown step by step."""

    PER_STEP = ("time_ns", "duration_ns", "free", "evicted")
    PER_ENTRY = ("request", "computed", "scheduled", "blocks")
    PER_REQUEST = ("first_scheduled_ns", "first_token_ns", "finished_ns", "cached_first")
    SUMS_PER_REQUEST = ("cached_resumed", "preemptions")

    def __init__(self, drawn: list[Drawn]) -> None:
        self.drawn = drawn
        names = (*self.PER_STEP, *self.PER_ENTRY, "preempted", "finished")
        self.of: dict[str, list[int]] = {name: [] for name in names}
        self.of |= {name + "_ptr": [0] for name in ("entry", "block", "preempted", "finished")}
        self.of |= {name: [-1] * len(drawn) for name in self.PER_REQUEST}
        self.of |= {name: [0] * len(drawn) for name in self.SUMS_PER_REQUEST}

    def add_entry(self, request: int, computed: int, scheduled: int, blocks: list[int]) -> None:
        self.of["request"].append(request)
        self.of["computed"].append(computed)
        self.of["scheduled"].append(scheduled)
        self.of["blocks"].extend(blocks)
        self.of["block_ptr"].append(len(self.of["blocks"]))

    def end_scheduling(self, preempted: list[int], **per_step: int) -> None:
        for name, value in per_step.items():
            self.of[name].append(value)
        self.of["entry_ptr"].append(len(self.of["request"]))
        self.of["preempted"].extend(preempted)
        self.of["preempted_ptr"].append(len(self.of["preempted"]))
        for request in preempted:
            self.of["preemptions"][request] += 1

    def end_treatment(self, finished: list[int]) -> None:
        self.of["finished"].extend(finished)
        self.of["finished_ptr"].append(len(self.of["finished"]))

    def arrays(self, free_order: list[int]) -> dict[str, np.ndarray]:
        """All of them, with the requests, in the smallest types that hold them.

        Token ids come in runs: stored as differences they take next to no room.
        """
        lengths = [len(r.prompt) + len(r.output) for r in self.drawn]
        tokens = [token for r in self.drawn for token in (*r.prompt, *r.output)]
        requests = {
            "arrival_ns": [r.arrival_ns for r in self.drawn],
            "prompt_tokens": [len(r.prompt) for r in self.drawn],
            "priority": [r.priority for r in self.drawn],
            "max_tokens": [r.max_tokens for r in self.drawn],
            "token_ptr": np.cumsum([0, *lengths]),
            "token_differences": np.diff(tokens, prepend=0),
        }
        return {name: smallest(v) for name, v in (self.of | requests | {"free_order": free_order}).items()}


def smallest(values: Any) -> np.ndarray:
    """As an array of the smallest signed integer type that holds them."""
    wide = np.asarray(values, dtype=np.int64)
    low, high = (int(wide.min()), int(wide.max())) if len(wide) else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return wide.astype(kind)
    return wide


# ---------------------------------------------------------------------- the engine's loop in virtual time


class Run:
    """One scenario on its way through the scheduler."""

    def __init__(self, settings: dict[str, Any], drawn: list[Drawn]) -> None:
        self.scheduler = build_scheduler(settings)
        self.listener = Listener(self.scheduler)
        self.columns = Columns(drawn)
        self.drawn = drawn
        self.hasher = None
        if settings["prefix_caching"]:
            init_none_hash(sha256)
            self.hasher = get_request_block_hasher(settings["block_size"], sha256)
        self.steps_out = 2 if settings["async_scheduling"] else 1
        self.arrived = 0
        self.answered = [0] * len(drawn)
        self.now = 0
        self.device_free = 0
        self.in_flight: deque[tuple[Any, set[str], int]] = deque()
        """Of each step that is out: the scheduler's output, who gets a token by it, and its end."""

    def run(self) -> None:
        """Until the last answer: schedule while fewer than `steps_out` are out, else wait for the oldest."""
        while self.arrived < len(self.drawn) or self.in_flight or self.scheduler.has_unfinished_requests():
            self.let_in()
            if self.scheduler.has_unfinished_requests():
                self.schedule()
                if len(self.in_flight) < self.steps_out:
                    continue
            if self.in_flight:
                self.treat(*self.in_flight.popleft())
            else:
                self.now = self.drawn[self.arrived].arrival_ns

    def let_in(self) -> None:
        """Hand over the requests that have come by now."""
        while self.arrived < len(self.drawn) and self.drawn[self.arrived].arrival_ns <= self.now:
            self.scheduler.add_request(self.engine_request(self.arrived))
            self.arrived += 1

    def engine_request(self, row: int) -> Request:
        drawn = self.drawn[row]
        last = [drawn.output[-1]] if drawn.max_tokens > len(drawn.output) else None
        return Request(
            request_id=str(row),
            prompt_token_ids=drawn.prompt,
            sampling_params=SamplingParams(max_tokens=drawn.max_tokens, ignore_eos=True, stop_token_ids=last),
            pooling_params=None,
            arrival_time=drawn.arrival_ns / 1e9,
            priority=drawn.priority,
            block_hasher=self.hasher,
        )

    def schedule(self) -> None:
        self.listener.start_step()
        output = self.scheduler.schedule()
        admitted = {new.req_id: new for new in output.scheduled_new_reqs}
        continued = output.scheduled_cached_reqs
        places = {request: place for place, request in enumerate(continued.req_ids)}
        load = [0, 0, 0]
        yielding = set()
        for request_id, tokens in output.num_scheduled_tokens.items():
            if request_id in admitted:
                computed = admitted[request_id].num_computed_tokens
                blocks = admitted[request_id].block_ids[0]
                self.note_admission(int(request_id), computed)
            else:
                place = places[request_id]
                computed = continued.num_computed_tokens[place]
                blocks = (continued.new_block_ids[place] or ([],))[0]
            self.columns.add_entry(int(request_id), computed, tokens, blocks)
            self.add_load(load, request_id, computed, tokens)
            if not self.scheduler.requests[request_id].is_prefill_chunk:
                yielding.add(request_id)
        duration = linear_step_ns(*load)
        self.device_free = max(self.now, self.device_free) + duration
        self.in_flight.append((output, yielding, self.device_free))
        self.note_step(output, duration)

    def add_load(self, load: list[int], request_id: str, computed: int, tokens: int) -> None:
        """Add a request's share to [prefill tokens, decode sequences, context tokens]."""
        request = self.scheduler.requests[request_id]
        in_answer = tokens == 1 and computed >= request.num_prompt_tokens
        at_end = computed + 1 >= request.num_tokens
        if in_answer and at_end:
            load[1] += 1
        else:
            load[0] += tokens
        self.listener.events["lone_recomputed_tokens"] += in_answer and not at_end
        load[2] += computed + tokens

    def note_admission(self, row: int, computed: int) -> None:
        column, events = self.columns.of, self.listener.events
        if column["first_scheduled_ns"][row] >= 0:
            column["cached_resumed"][row] += computed
            events["readmission_hits"] += computed > 0
            return
        column["first_scheduled_ns"][row] = self.now
        column["cached_first"][row] = computed
        events["prefix_hits"] += computed > 0
        events["hits_on_running_turns"] += self.hits_answer_of_running(row, computed)
        events["answer_hits"] += self.hits_answer(row, computed)

    def hits_answer(self, row: int, computed: int) -> bool:
        """Whether the cached part of a prompt reaches into another request's answer."""
        hit = set(self.drawn[row].prompt[:computed])
        return any(not hit.isdisjoint(other.output) for other in self.drawn[:row])

    def hits_answer_of_running(self, row: int, computed: int) -> bool:
        """The same with that request still being answered."""
        hit = set(self.drawn[row].prompt[:computed])
        running = (int(request.request_id) for request in self.scheduler.running)
        return any(not hit.isdisjoint(self.drawn[other].output) for other in running if other != row)

    def note_step(self, output: Any, duration: int) -> None:
        listener, scheduler = self.listener, self.scheduler
        listener.events["empty_steps"] += not output.num_scheduled_tokens
        listener.events["steps_at_max_num_seqs"] += len(scheduler.running) == scheduler.max_num_running_reqs
        self.columns.end_scheduling(
            listener.preempted,
            time_ns=self.now,
            duration_ns=duration,
            free=listener.pool.get_num_free_blocks(),
            evicted=listener.evicted,
        )

    def treat(self, output: Any, yielding: set[str], end_ns: int) -> None:
        """Wait for a step's end and hand its tokens to the scheduler."""
        self.now = max(self.now, end_ns)
        scheduler = self.scheduler
        waiting = {request.request_id for request in scheduler.waiting}
        ids = list(output.num_scheduled_tokens)
        tokens = [self.next_token(r) if r in yielding and r in scheduler.requests else [] for r in ids]
        answer = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: place for place, request_id in enumerate(ids)},
            sampled_token_ids=tokens,
        )
        results = scheduler.update_from_output(output, answer)
        ended = [o.request_id for client in results.values() for o in client.outputs if o.finish_reason is not None]
        for request_id in ended:
            self.note_end(int(request_id), request_id in waiting)
        self.columns.end_treatment([int(request_id) for request_id in ended])

    def next_token(self, request_id: str) -> list[int]:
        row = int(request_id)
        if self.answered[row] == 0:
            self.columns.of["first_token_ns"][row] = self.now
        self.answered[row] += 1
        return [self.drawn[row].output[self.answered[row] - 1]]

    def note_end(self, row: int, was_waiting: bool) -> None:
        drawn, events = self.drawn[row], self.listener.events
        self.columns.of["finished_ns"][row] = self.now
        events["ended_while_waiting"] += was_waiting
        events["cut_by_max_model_len"] += self.answered[row] < len(drawn.output)
        events["ended_by_eos"] += self.answered[row] == len(drawn.output) < drawn.max_tokens


# ---------------------------------------------------------------------- writing


def record(scenario: Scenario, folder: Path) -> None:
    """Run a scenario and write its two files."""
    drawn = draw(scenario.workload, scenario.seed)
    run = Run(scenario.settings, drawn)
    run.run()
    pool = run.listener.pool
    free_order = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    assert len(free_order) == scenario.settings["num_blocks"] - 1, "blocks are missing from the free queue"
    events = {name: n for name, n in sorted(run.listener.events.items()) if n}
    about = {
        "engine": "vllm 0.32.0",
        "settings": scenario.settings,
        "seed": scenario.seed,
        "requests": len(drawn),
        "steps": len(run.columns.of["time_ns"]),
        "exercises": scenario.exercises,
        "events": events,
    }
    target = folder / f"{scenario.name}.npz"
    np.savez_compressed(target, **run.columns.arrays(free_order))
    target.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n")
    missing = [name for name in scenario.exercises if not events.get(name)]
    print(f"{scenario.name}: {about['steps']} steps, {target.stat().st_size // 1024} KB, {events}")
    if missing:
        print(f"{scenario.name}: LACKS {missing}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="scenarios; all where none is named")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    for scenario in SCENARIOS:
        if not options.names or scenario.name in options.names:
            record(scenario, options.out)


if __name__ == "__main__":
    main()
