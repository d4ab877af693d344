"""What can be set of a simulated engine, with the engine's own names and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class AllocatorSettings:
    """The memory: vLLM's pool of blocks, or SGLang's slots or pages."""

    kind: str = "block_pool"
    """block_pool (vLLM's), token_slots or paged_slots (SGLang's), or contiguous: one region a request."""
    block_size: int = 16
    """Tokens a block; SGLang's page size."""
    num_blocks: int | None = None
    """vLLM: the whole pool, null block included."""
    num_slots: int | None = None
    """SGLang: tokens, the padding slot or page not counted."""
    capacity_tokens: int | None = None
    """Tokens that can be held: another way to give `num_blocks`."""
    prefix_caching: bool = True


@dataclass(frozen=True)
class SchedulerSettings:
    """The scheduler of vLLM 0.32.0 (`vllm.config.SchedulerConfig`)."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131072
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    policy: str = "fcfs"
    async_scheduling: bool = True


@dataclass(frozen=True)
class RooflineSettings:
    """The parts of a step's time, in nanoseconds (`RooflineStepTime` has the formula).

    What is left out follows from `model` and `gpu` where these are given, and is 0 where they are not.
    """

    weights_ns: float | None = None
    """Reading the weights of the dense layers once."""
    experts_ns: float | None = None
    """Reading the weights of all experts once."""
    expert_share: float | None = None
    """Share of the experts that one token goes to."""
    token_ns: float | None = None
    """Arithmetic of the linear layers for one token."""
    head_ns: float | None = None
    """Reading the lm head's weights once."""
    head_seq_ns: float | None = None
    """Arithmetic of the lm head for one sequence."""
    decode_seq_ns: float | None = None
    """For each decoding request, whatever its length."""
    decode_context_ns: float | None = None
    """Attention of a decoding request to one token in its cache."""
    prefill_pair_ns: float | None = None
    """Attention of one prefilled token to one token that it sees."""
    window: int | None = None
    """Tokens seen in the layers with a sliding window; 0: no such layers."""
    window_context_ns: float | None = None
    window_pair_ns: float | None = None
    """As the two above, in the layers with a window (those above then leave these out)."""
    kernels_ns: float | None = None
    """Small kernels of all layers (norms, rotary embedding, activation, writing the cache), whatever the tokens."""
    comm_ns: float | None = None
    """All-reduces of a step, apart from what they carry."""
    comm_token_ns: float | None = None
    """All-reduces of a step, for each token."""
    host_ns: float | None = None
    """Work of the host for a step; hidden behind the step before under asynchronous scheduling."""


@dataclass(frozen=True)
class SglangSettings:
    """The scheduler of SGLang 0.5.22 (its server arguments)."""

    chunked_prefill_size: int = 8192
    """Tokens of prompts that one batch extends at most; 0 or less: no chunks."""
    max_prefill_tokens: int = 16384
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    radix_eviction_policy: str = "lru"
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    enable_mixed_chunk: bool = False
    max_running_requests: int | None = None
    """None: the engine's own rule."""
    context_length: int = 131072
    clip_max_new_tokens_estimation: int = 4096


@dataclass(frozen=True)
class LatencySettings:
    """Step time, in integer nanoseconds."""

    kind: str = "linear"
    base_ns: int = 5_000_000
    prefill_token_ns: int = 20_000
    decode_seq_ns: int = 50_000
    context_token_ns: int = 20
    roofline: RooflineSettings = field(default_factory=RooflineSettings)
    """For kind `roofline`."""
    profile: str | None = None
    """For kind `profile`: a table of measured times, CSV or Parquet."""


@dataclass(frozen=True)
class RequestSettings:
    """What the server is told of a request."""

    max_new_tokens: str | int = "recorded"
    """`recorded`: each request's own output length; a number: the same for all, and a request that generated fewer
    tokens ends by EOS there."""


@dataclass(frozen=True)
class ArrivalSettings:
    """When requests come."""

    scale: float = 1.0
    """Arrival times are divided by it: 2.0 is twice the load."""
    sessions: str = "open"
    """`open`: at their recorded times; `closed`: a turn waits for its predecessor."""


@dataclass(frozen=True)
class SimSettings:
    """How the simulation itself runs; no setting here changes a result."""

    fast_forward: bool = True


@dataclass(frozen=True)
class Settings:
    """A whole simulated setup."""

    engine: str = "vllm"
    allocator: AllocatorSettings = field(default_factory=AllocatorSettings)
    scheduler: SchedulerSettings | SglangSettings = field(default_factory=SchedulerSettings)
    latency: LatencySettings = field(default_factory=LatencySettings)
    requests: RequestSettings = field(default_factory=RequestSettings)
    arrivals: ArrivalSettings = field(default_factory=ArrivalSettings)
    sim: SimSettings = field(default_factory=SimSettings)
    seed: int = 0
    model: str | None = None
    """A preset or a Hugging Face `config.json`; with `gpu` it gives capacity and step time."""
    gpu: str | None = None
    """A preset or a YAML file of one's own."""
    tensor_parallel: int | None = None
    """GPUs that share every layer; None: 1."""
    pipeline_parallel: int | None = None
    """GPUs that share the layers; None: 1."""
    gpu_memory_utilization: float | None = None
    """vLLM's; None: its default."""
    mem_fraction_static: float | None = None
    """SGLang's; None: its own rule."""
    kv_cache_dtype: str | None = None
    """auto (16 bits) or fp8; None: auto."""
    reserve_gib: float | None = None
    """What vLLM keeps of each GPU for activations, graphs and context; None: estimated."""
    attention_backend: str | None = None
    """Whose block size `allocator.block_size: auto` takes."""
