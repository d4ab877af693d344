"""What can be set of a simulated engine, with the engine's own names and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class AllocatorSettings:
    """The KV-cache pool of vLLM."""

    kind: str = "block_pool"
    block_size: int = 16
    num_blocks: int | None = None
    """The whole pool, null block included."""
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
class LatencySettings:
    """Step time, in integer nanoseconds."""

    kind: str = "linear"
    base_ns: int = 5_000_000
    prefill_token_ns: int = 20_000
    decode_seq_ns: int = 50_000
    context_token_ns: int = 20


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
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    latency: LatencySettings = field(default_factory=LatencySettings)
    requests: RequestSettings = field(default_factory=RequestSettings)
    arrivals: ArrivalSettings = field(default_factory=ArrivalSettings)
    sim: SimSettings = field(default_factory=SimSettings)
    seed: int = 0
