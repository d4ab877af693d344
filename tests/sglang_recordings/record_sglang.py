#!/usr/bin/env python3
"""Record what SGLang 0.5.22's own scheduler, pools and radix tree do with the scenarios of `sglang_scenarios.py`.

The classes and the event loops are those of the released wheel, driven on a CPU in virtual time: no model is
loaded, a batch takes what the linear step time says, and scheduling takes no time. Each scenario becomes
NAME.npz (arrays) and NAME.json (settings, and how often each event of interest came up);
`sglang_recording_format.py`, one folder up, says what the arrays mean.

The environment, once (a virtual environment of its own, Python 3.11, Linux):

    pip install torch==2.13.0
    pip install --no-deps sglang==0.5.22
    pip install -r requirements.txt

SGLang's package imports more than its scheduler needs. `requirements.txt` has what is imported and easily had;
the rest of that chain (`STAND_INS`) is replaced by empty modules. Then, from any folder:

    python record_sglang.py                     all scenarios, written beside this file
    python record_sglang.py lpm_page1 --out DIR
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import logging
import os
import sys
import types
import warnings
from array import array
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
from sglang_scenarios import SCENARIOS, Drawn, Scenario, draw

# ---------------------------------------------------------------------- making SGLang importable

STAND_INS = frozenset(("torchvision", "sentencepiece", "compressed_tensors", "gguf", "uvicorn"))
"""Top-level packages of images, tokenizers, quantized weights and the web server."""


class _StandInType(type):
    """Of a class that stands for whatever the real module has: a class, a function, a namespace."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def _stand_in(name: str) -> Any:
    return _StandInType(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _StandInModule(types.ModuleType):
    """A module in which every public name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _stand_in(name))
        return self.__dict__[name]


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports from `STAND_INS`, whether or not the package is installed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _StandInModule(spec.name)
        module.__version__ = "0.0.0"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.insert(0, _StandInFinder())
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
os.environ |= {"SGLANG_RUST_BUILD_MODE": "never", "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "rust"}

import torch  # noqa: E402
from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.managers import schedule_policy  # noqa: E402
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.managers.utils import GenerationBatchResult, validate_input_length  # noqa: E402
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, default_radix_cache_factory  # noqa: E402
from sglang.srt.mem_cache.unified_cache.cache_action import FreeDeviceKV  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402

torch.set_num_threads(1)

KINDS = ("extend", "decode", "mixed")


def linear_step_ns(prefill_tokens: int, decode_seqs: int, context_tokens: int) -> int:
    """The step time of all recordings."""
    return 5_000_000 + 20_000 * prefill_tokens + 50_000 * decode_seqs + 20 * context_tokens


# ---------------------------------------------------------------------- the memory of an engine


def publish_settings(settings: dict[str, Any]) -> ServerArgs:
    """Make the settings those of this process, as a server would at its start."""
    passed_on = {name: settings[name] for name in settings if name not in NOT_SERVER_ARGUMENTS}
    arguments = ServerArgs(
        model_path="none",
        device="cpu",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        grammar_backend="none",
        skip_tokenizer_init=True,
        **passed_on,
    )
    schedule_policy.CLIP_MAX_NEW_TOKENS = settings["clip_max_new_tokens_estimation"]  # an environment variable
    ranks = runtime_context.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
    runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    return arguments


NOT_SERVER_ARGUMENTS = ("num_slots", "context_length", "clip_max_new_tokens_estimation")


class Memory:
    """The pools and the tree as an engine with these settings would build them."""

    def __init__(self, settings: dict[str, Any], arguments: ServerArgs) -> None:
        page_size = settings["page_size"]
        self.num_slots = settings["num_slots"] // page_size * page_size
        model = types.SimpleNamespace(context_len=settings["context_length"])
        asking = types.SimpleNamespace(model_config=model, attn_dp_size=1, mambaish_config=None)
        self.max_running = KVCacheConfigurator.resolve_max_num_reqs(asking, self.num_slots)
        self.rows = ReqToTokenPool(self.max_running, settings["context_length"] + 4, "cpu", False)
        options: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cpu", "kvcache": None, "need_sort": False}
        if page_size == 1:
            self.allocator = TokenToKVPoolAllocator(self.num_slots, **options)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(self.num_slots, page_size=page_size, **options)
        parameters = CacheInitParams(
            disable=settings["disable_radix_cache"],
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page_size,
            eviction_policy=settings["radix_eviction_policy"],
            chunked_prefill_size=settings["chunked_prefill_size"],
        )
        context = TreeCacheBuildContext(
            server_args=arguments,
            params=parameters,
            is_hybrid_swa=False,
            is_hybrid_ssm=False,
            enable_hierarchical_cache=False,
            disable_radix_cache=settings["disable_radix_cache"],
            tp_worker=None,
            model_config=None,
            tp_size=1,
            tp_rank=0,
            tp_group=None,
        )
        self.tree = default_radix_cache_factory(context)
        assert isinstance(self.tree, UnifiedRadixCache)

    def check_nothing_lost(self) -> None:
        """With no request in the engine every slot is free or evictable, every row free."""
        assert self.tree.protected_size() == 0
        assert self.allocator.available_size() + self.tree.evictable_size() == self.num_slots
        assert len(self.rows.free_slots) == self.max_running


# ---------------------------------------------------------------------- the scheduler


class Quiet:
    """Takes part in nothing: any method may be called, and answers with `answer`."""

    def __init__(self, answer: Any = None, **attributes: Any) -> None:
        self._answer = answer
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._answer


SWITCHED_OFF = (
    "abort_on_priority_when_disabled",
    "attn_dp_enabled",
    "enable_decode_hicache",
    "enable_fpm",
    "enable_hicache_storage",
    "enable_hierarchical_cache",
    "enable_hisparse",
    "enable_lmcache",
    "enable_lora",
    "enable_lora_overlap_loading",
    "enable_overlap_mlx",
    "enable_pdmux",
    "enable_priority_scheduling",
    "enable_session_radix_cache",
    "enable_unified_cache_external_linker",
    "enable_unified_memory",
    "is_hybrid_ssm",
    "is_hybrid_swa",
    "require_mlp_sync",
    "schedule_low_priority_values_first",
)
NOT_THERE = (
    "chunked_req",
    "decode_offload_manager",
    "dllm_config",
    "draft_worker",
    "dynamic_chunk_sizer",
    "future_map",
    "hisparse_coordinator",
    "lora_drainer",
    "max_new_tokens_limit",
    "max_queued_requests",
    "metrics_collector",
    "min_free_slots_delayer",
    "scheduler_stage_metrics",
    "sliding_window_size",
    "truncation_align_size",
    "_pending_chunked_abort_req",
)


class VirtualScheduler(Scheduler):
    """The engine's scheduler with a virtual clock and a forward pass that answers from the scenario."""

    def __init__(self, settings: dict[str, Any], memory: Memory, drawn: list[Drawn]) -> None:
        self._take_settings(settings, memory)
        self._go_without(settings)
        self.init_running_status()
        self.init_schedule_policy()
        self.init_batch_result_processor()
        self.memory = memory
        self.drawn = drawn
        self.pending = deque(range(len(drawn)))
        self.now = 0
        self.device_free = 0
        self.idle_at: tuple[int, int] | None = None
        """Time and launched batches at the last idle pass with requests waiting."""
        self.recorder = Recorder(self, drawn)

    def _take_settings(self, settings: dict[str, Any], memory: Memory) -> None:
        """What the engine's own constructor derives from its arguments and its pools."""
        self.page_size = settings["page_size"]
        self.req_to_token_pool = memory.rows
        self.token_to_kv_pool_allocator = memory.allocator
        self.tree_cache = memory.tree
        self.max_total_num_tokens = memory.num_slots
        self.max_running_requests = memory.max_running
        self.max_req_len = min(settings["context_length"], memory.num_slots) - 1
        self.max_req_input_len = self.max_req_len - 5
        self.max_prefill_tokens = settings["max_prefill_tokens"]
        self.schedule_policy = settings["schedule_policy"]
        self.enable_overlap = not settings["disable_overlap_schedule"]
        self.disable_radix_cache = settings["disable_radix_cache"]
        chunk = settings["chunked_prefill_size"]
        self.chunked_prefill_size = chunk if chunk > 0 else None
        self.is_mixed_chunk = chunk > 0 and settings["enable_mixed_chunk"]
        per_batch = max(memory.max_running, 1)
        runtime_context.get_context().override("recorder", pp_max_micro_batch_size=per_batch)
        self.model_config = types.SimpleNamespace(
            context_len=settings["context_length"],
            vocab_size=1 << 40,
            is_encoder_decoder=False,
            is_multimodal=False,
            hf_eos_token_id=None,
        )

    def _go_without(self, settings: dict[str, Any]) -> None:
        """Everything that a plain engine of one process does not use, or that talks to others."""
        for name in SWITCHED_OFF:
            setattr(self, name, False)
        for name in NOT_THERE:
            setattr(self, name, None)
        self.is_generation = True
        self.device = "cpu"
        self.kv_shard_widening = 1
        self.priority_scheduling_preemption_threshold = 0
        self.prefill_decode_interval = self._prefill_decode_interval_remaining = 0
        self.processed_tokens_counter = 0
        self.spec_algorithm = SpeculativeAlgorithm.from_string(None)
        self.disaggregation_mode = DisaggregationMode.NULL
        self.metrics_reporter = Quiet(enable_metrics=False, forward_ct_decode=0, num_generated_tokens=0)
        self.load_inquirer = Quiet(0)
        self.load_publisher = Quiet()
        self.output_streamer = Quiet()
        self.ipc_channels = Quiet(send_to_tokenizer=Quiet())
        self.grammar_manager = Quiet(False, grammar_queue=[])
        self.dllm_manager = Quiet(False)
        runner = types.SimpleNamespace(attn_backend=None, prefill_aware_swa=False)
        self.tp_worker = self.model_worker = types.SimpleNamespace(model_runner=runner)
        self.dp_attn_adapter = self.ngram_embedding_manager = _PassOn()

    def _apply_war_barrier(self) -> None:
        """There is no device stream to order."""

    def launch_batch_sample_if_needed(self, *args: Any) -> None:
        """Tokens are known as soon as a batch is launched."""

    def publish_load_snapshot(self, force: bool = False) -> None:
        """Nobody balances load."""

    def _record_step_counters(self, *args: Any) -> None:
        """Nobody reads them."""

    def maybe_send_health_check_signal(self) -> None:
        """Nobody asks."""

    def _prefetch_kvcache(self, *args: Any, **kwargs: Any) -> None:
        """There is no storage to prefetch from."""

    # ------------------------------------------------------------------ the loop's surroundings

    def ingest_requests(self, stop_at_pause: bool = False) -> list[Any]:
        """Hand over the requests that have come by now.

        A prompt that is too long is dropped here. A server would let a request of one token take its place,
        and abort it after its prefill.
        """
        while self.pending and self.drawn[self.pending[0]].arrival_ns <= self.now:
            number = self.pending.popleft()
            request = self._engine_request(number)
            self.recorder.note_arrival(number)
            self.init_req_max_new_tokens(request)
            if validate_input_length(request, self.max_req_input_len, False):
                self.recorder.events["rejected"] += 1
                continue
            self._add_request_to_queue(request)
        return []

    def _engine_request(self, number: int) -> Req:
        drawn = self.drawn[number]
        stops = {drawn.output[-1]} if drawn.max_new_tokens > len(drawn.output) else None
        sampling = SamplingParams(max_new_tokens=drawn.max_new_tokens, temperature=0.0)
        sampling.normalize(None)
        request = Req(str(number), "", array("q", drawn.prompt), sampling, eos_token_ids=stops)
        request.logprob_start_len = -1
        return request

    def run_batch(self, batch: ScheduleBatch, pp_proxy_tensors: Any = None) -> GenerationBatchResult:
        """Answer each request with the token of the scenario that comes next at its length."""
        self.forward_ct += 1
        batch.forward_iter = self.forward_ct
        tokens = []
        for request, length in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True):
            output = self.drawn[int(request.rid)].output
            place = length - len(request.origin_input_ids)
            tokens.append(output[place] if 0 <= place < len(output) else 0)
        duration = self.recorder.note_launch(batch)
        self.device_free = max(self.now, self.device_free) + duration
        batch.input_ids = None
        result = GenerationBatchResult(next_token_ids=torch.tensor(tokens, dtype=torch.int64))
        self.recorder.in_flight.append((len(self.recorder.of["time_ns"]) - 1, self.device_free))
        return result

    def process_batch_result(self, batch: ScheduleBatch, result: GenerationBatchResult) -> None:
        step, end_ns = self.recorder.in_flight.popleft()
        self.now = max(self.now, end_ns)
        before = [(len(request.output_ids), request.finished()) for request in batch.reqs]
        super().process_batch_result(batch, result)
        self.recorder.note_result(step, batch.reqs, before)

    def on_idle(self) -> None:
        """Move on to the next arrival; where the engine is empty, look for leaks as well.

        Where requests wait the engine goes round again at once; only if that changes nothing does time move.
        """
        if self.is_fully_idle():
            self.memory.check_nothing_lost()
            self.new_token_ratio_tracker.reset()
            self.gracefully_exit = not self.pending
        elif self.idle_at != (self.now, self.forward_ct):
            self.idle_at = (self.now, self.forward_ct)
            self.recorder.events["idle_with_requests_waiting"] += 1
            return
        elif not self.pending:
            raise RuntimeError("the first request of the queue does not fit into the empty engine")
        if self.pending:
            self.now = max(self.now, self.drawn[self.pending[0]].arrival_ns)


class _PassOn:
    """Adapters that would change a batch for data parallelism or n-gram models."""

    def __getattr__(self, name: str) -> Any:
        return lambda batch, *args, **kwargs: batch


# ---------------------------------------------------------------------- recording


class Recorder:
    """The arrays of a recording, grown step by step, and the counts of what happened."""

    PER_STEP = (
        *("kind", "time_ns", "start_ns", "duration_ns", "prefill_tokens", "decode_seqs", "context_tokens"),
        *("free", "available", "evictable", "waiting", "running", "evicted", "new_token_ratio"),
    )
    LISTS = ("request", "computed", "scheduled", "row", "run_start", "run_length", "asked", "dropped", "preempted")
    POINTERS = ("entry_ptr", "run_ptr", "eviction_ptr", "preempted_ptr")
    PER_REQUEST = ("ingested_ns", "first_scheduled_ns", "first_token_ns", "finished_ns", "cached_first")
    SUMS_PER_REQUEST = ("cached_resumed", "preemptions", "generated", "prefills")

    def __init__(self, scheduler: VirtualScheduler, drawn: list[Drawn]) -> None:
        self.scheduler = scheduler
        self.drawn = drawn
        self.events: Counter[str] = Counter()
        self.in_flight: deque[tuple[int, int]] = deque()
        """Number and end of each launched batch whose result has not been treated."""
        self.of: dict[str, list[Any]] = {name: [] for name in (*self.PER_STEP, *self.LISTS)}
        self.of |= {name: [0] for name in self.POINTERS}
        self.of |= {name: [-1] * len(drawn) for name in self.PER_REQUEST}
        self.of |= {name: [0] * len(drawn) for name in self.SUMS_PER_REQUEST}
        self.finished: list[list[int]] = []
        self.admission: list[int] = [-1] * len(drawn)
        """Of each request, its retractions before its last admission."""
        self.answers = {token for request in drawn for token in request.output}
        tap(scheduler, "_add_request_to_queue", before=self._before_queueing)
        tap(scheduler, "_reqs_finishing_inflight", after=self._after_looking_for_last_tokens)
        tap(scheduler, "update_running_batch", after=self._after_decode_scheduling)
        tap(scheduler, "get_num_allocatable_reqs", after=self._after_counting_seats)
        tap(scheduler.ipc_channels.send_to_tokenizer, "send_output", before=self._before_abort)
        tap(scheduler.policy, "_compute_prefix_matches", after=self._after_matching_queue)
        tap(scheduler.tree_cache, "touch_prefix", before=self._before_touch)
        tap(scheduler.tree_cache, "_apply_cache_action", before=self._before_cache_action)
        if not scheduler.disable_radix_cache:
            tap(scheduler.tree_cache, "_evict", after=self._after_eviction)

    # ------------------------------------------------------------------ listening in

    def _before_queueing(self, request: Req, is_retracted: bool = False) -> None:
        if is_retracted:
            self.of["preempted"].append(int(request.rid))
            self.of["preemptions"][int(request.rid)] += 1
            self.events["retractions"] += 1

    def _before_abort(self, *_: Any) -> None:
        self.events["aborted"] += 1

    def _after_looking_for_last_tokens(self, ending: list[Req], *_: Any) -> None:
        self.events["left_out_of_decodes"] += len(ending)

    def _after_decode_scheduling(self, batch: ScheduleBatch | None, *_: Any) -> None:
        self.events["skipped_decodes"] += batch is None

    def _after_counting_seats(self, seats: int, *_: Any, **__: Any) -> None:
        self.events["no_seats"] += seats <= 0

    def _after_matching_queue(self, behind: set[Any], *_: Any) -> None:
        self.events["put_behind_their_prefix"] += len(behind)

    def _before_touch(self, *_: Any) -> None:
        self.events["touched_prefixes"] += 1

    def _before_cache_action(self, action: Any) -> None:
        if isinstance(action, FreeDeviceKV):
            self.events["duplicates"] += sum(indices.numel() > 0 for indices in action.indices)

    def _after_eviction(self, result: Any, request: Any, *_: Any, **__: Any) -> None:
        self.of["asked"].append(request.num_tokens)
        self.of["dropped"].append(result.num_tokens_evicted)
        self.events["evictions"] += result.num_tokens_evicted

    # ------------------------------------------------------------------ noting

    def note_arrival(self, number: int) -> None:
        self.of["ingested_ns"][number] = self.scheduler.now

    def note_launch(self, batch: ScheduleBatch) -> int:
        """Take down a batch as it is launched; return how long it takes."""
        scheduler = self.scheduler
        lengths = batch.seq_lens_cpu.tolist()
        if batch.forward_mode.is_extend():
            decodes = len(batch.decoding_reqs) if batch.forward_mode.is_mixed() else 0
            computed, scheduled = list(batch.prefix_lens), list(batch.extend_lens)
            self._note_extends(batch, len(lengths) - decodes)
        else:
            decodes = len(lengths)
            computed, scheduled = [length - 1 for length in lengths], [1] * decodes
        kind = "decode" if decodes == len(lengths) else "mixed" if decodes else "extend"
        prefill = sum(scheduled) - decodes
        duration = linear_step_ns(prefill, decodes, sum(lengths))
        self._add(
            kind=KINDS.index(kind),
            time_ns=scheduler.now,
            start_ns=max(scheduler.now, scheduler.device_free),
            duration_ns=duration,
            prefill_tokens=prefill,
            decode_seqs=decodes,
            context_tokens=sum(lengths),
            free=len(scheduler.memory.allocator.free_pages),
            available=scheduler.memory.allocator.available_size(),
            evictable=scheduler.memory.tree.evictable_size(),
            waiting=len(scheduler.waiting_queue),
            running=len(scheduler.running_batch.reqs),
            evicted=sum(self.of["dropped"][self.of["eviction_ptr"][-1] :]),
            new_token_ratio=scheduler.new_token_ratio_tracker.current,
        )
        self.of["request"].extend(int(request.rid) for request in batch.reqs)
        self.of["computed"].extend(computed)
        self.of["scheduled"].extend(scheduled)
        self.of["row"].extend(batch.req_pool_indices_cpu.tolist())
        self._add_runs(batch.out_cache_loc.tolist())
        for pointer, column in zip(self.POINTERS, ("request", "run_start", "asked", "preempted"), strict=True):
            self.of[pointer].append(len(self.of[column]))
        self.finished.append([])
        self._count_launch(batch, kind)
        return duration

    def _add(self, **per_step: Any) -> None:
        for name, value in per_step.items():
            self.of[name].append(value)

    def _add_runs(self, slots: list[int]) -> None:
        previous = None
        for slot in slots:
            if previous is None or slot != previous + 1:
                self.of["run_start"].append(slot)
                self.of["run_length"].append(0)
            self.of["run_length"][-1] += 1
            previous = slot

    def _note_extends(self, batch: ScheduleBatch, count: int) -> None:
        for request, cached in list(zip(batch.reqs, batch.prefix_lens, strict=True))[:count]:
            number = int(request.rid)
            self.of["prefills"][number] += 1
            if self.of["first_scheduled_ns"][number] < 0:
                self.of["first_scheduled_ns"][number] = self.scheduler.now
                self.of["cached_first"][number] = cached
                self.events["prefix_hits"] += cached > 0
                hit = self.drawn[number].prompt[:cached]
                self.events["answer_hits"] += not self.answers.isdisjoint(hit)
            elif self.admission[number] != request.retraction_count:
                self.of["cached_resumed"][number] += cached
                self.events["readmission_hits"] += cached > 0
            self.admission[number] = request.retraction_count

    def _count_launch(self, batch: ScheduleBatch, kind: str) -> None:
        scheduler, events = self.scheduler, self.events
        if kind == "decode":
            return
        events["mixed_batches"] += kind == "mixed"
        sitting_out = kind == "extend" and scheduler.running_batch.reqs
        events["decodes_sitting_out"] += bool(scheduler.is_mixed_chunk and sitting_out)
        events["prefills_with_no_answer_allowed"] += sum(r.sampling_params.max_new_tokens == 0 for r in batch.reqs)
        queue = len(scheduler.waiting_queue)
        events["long_queues"] += queue > schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX
        if batch.chunked_req is not None:
            events["chunks"] += 1
            events["chunks_ending_within_a_page"] += batch.chunked_req.extend_end % scheduler.page_size > 0

    def note_result(self, step: int, requests: list[Req], before: list[tuple[int, bool]]) -> None:
        """Take down what the treatment of a result has changed."""
        for request, (generated, was_finished) in zip(requests, before, strict=True):
            number = int(request.rid)
            self.of["generated"][number] = len(request.output_ids)
            if generated == 0 and len(request.output_ids) == 1:
                self.of["first_token_ns"][number] = self.scheduler.now
            if request.finished() and not was_finished:
                self.of["finished_ns"][number] = self.scheduler.now
                self.finished[step].append(number)
                self._count_end(request)

    def _count_end(self, request: Req) -> None:
        drawn, generated = self.drawn[int(request.rid)], len(request.output_ids)
        by_length = generated >= request.sampling_params.max_new_tokens
        self.events["ended_by_length"] += by_length
        self.events["ended_by_eos"] += not by_length
        self.events["cut_short"] += generated < len(drawn.output)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of them, with the requests, in the smallest types that hold them.

        Token ids come in runs: stored as differences they take next to no room.
        """
        assert len(self.of["asked"]) == self.of["eviction_ptr"][-1], "evictions after the last launch"
        lengths = [len(r.prompt) + len(r.output) for r in self.drawn]
        tokens = [token for r in self.drawn for token in (*r.prompt, *r.output)]
        more = {
            "finished_ptr": np.cumsum([0, *map(len, self.finished)]),
            "finished": [number for step in self.finished for number in step],
            "free_order": self.scheduler.memory.allocator.get_all_free_pages().tolist(),
            "row_order": self.scheduler.memory.rows.free_slots,
            "arrival_ns": [r.arrival_ns for r in self.drawn],
            "prompt_tokens": [len(r.prompt) for r in self.drawn],
            "max_new_tokens": [r.max_new_tokens for r in self.drawn],
            "token_ptr": np.cumsum([0, *lengths]),
            "token_differences": np.diff(tokens, prepend=0),
        }
        return {name: smallest(values) for name, values in (self.of | more).items()}


def tap(owner: Any, name: str, before: Any = None, after: Any = None) -> None:
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


def smallest(values: Any) -> np.ndarray:
    """As an array of the smallest signed integer type that holds them; fractions stay as they are."""
    found = np.asarray(values)
    if found.dtype.kind == "f" and len(found):
        return found
    wide = found.astype(np.int64)
    low, high = (int(wide.min()), int(wide.max())) if len(wide) else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return wide.astype(kind)
    return wide


# ---------------------------------------------------------------------- writing


def run(scenario: Scenario) -> Recorder:
    """Run a scenario through the engine's own event loop."""
    settings = scenario.settings
    memory = Memory(settings, publish_settings(settings))
    scheduler = VirtualScheduler(settings, memory, draw(scenario.workload, scenario.seed))
    if settings["disable_overlap_schedule"]:
        scheduler.event_loop_normal()
    else:
        scheduler.event_loop_overlap()
    return scheduler.recorder


def record(scenario: Scenario, folder: Path) -> None:
    """Run a scenario and write its two files."""
    recorder = run(scenario)
    events = {name: n for name, n in sorted(recorder.events.items()) if n}
    about = {
        "engine": "sglang 0.5.22",
        "settings": scenario.settings,
        "seed": scenario.seed,
        "requests": len(recorder.drawn),
        "steps": len(recorder.of["time_ns"]),
        "exercises": scenario.exercises,
        "events": events,
    }
    target = folder / f"{scenario.name}.npz"
    np.savez_compressed(target, **recorder.arrays())
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
