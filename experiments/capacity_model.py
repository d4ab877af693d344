"""A model's architecture as far as memory and step time depend on it, read from its Hugging Face configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..traces.errors import InputError
from .capacity_presets import count, read_preset

FULL = 0
"""The window of a layer that sees everything."""

_WEIGHT_BITS = {"fp8": 8.0, "mxfp4": 4.25, "awq": 4.25, "gptq": 4.25, "compressed-tensors": 8.0, "modelopt": 8.0}
"""Bits a weight by quantisation method; 4-bit ones with their scales, a 16-bit or 8-bit one for each 32 to 128."""


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer. Counts of parameters are of the whole model; norms are left out (below 0.01 %)."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    k_head_size: int
    v_head_size: int
    vocabulary: int
    latent: int
    """Values that multi-head latent attention keeps of a token in each layer; 0: keys and values are kept."""
    windows: tuple[int, ...]
    """Of each layer; `FULL` where it sees everything."""
    attention_parameters: int
    """Projections of all layers."""
    dense_parameters: int
    """Feed-forward parts that every token goes through: MLPs, shared experts, routers."""
    expert_parameters: int
    """Of all experts that tokens are routed to."""
    embedding_parameters: int
    head_parameters: int
    """The lm head's; the embedding's again where they are tied (then stored once)."""
    tied: bool
    expert_share: float
    """Share of the routed experts that one token goes to; 0: none are routed to."""
    intermediate: int
    """Widest activation of a token in a feed-forward part."""
    bits: float
    """Of a weight of the linear layers."""
    expert_bits: float
    other_bits: float
    """Of embedding, lm head and what else a quantisation leaves out."""
    extra_parameters: int
    """Stored, but not part of a step on text (a vision tower)."""
    context: int

    @property
    def parameters(self) -> int:
        """All that is stored."""
        head = 0 if self.tied else self.head_parameters
        return (
            self.attention_parameters
            + self.dense_parameters
            + self.expert_parameters
            + self.embedding_parameters
            + head
            + self.extra_parameters
        )

    @property
    def dense_bytes(self) -> float:
        """Weights that every step reads, experts and lm head apart."""
        return (self.attention_parameters + self.dense_parameters) * self.bits / 8

    @property
    def expert_bytes(self) -> float:
        """Weights of all routed experts."""
        return self.expert_parameters * self.expert_bits / 8

    @property
    def head_bytes(self) -> float:
        """Weights of the lm head."""
        return self.head_parameters * self.other_bits / 8

    @property
    def weight_bytes(self) -> float:
        """All weights as stored on one GPU, or on all of a parallel group together."""
        head = 0.0 if self.tied else self.head_bytes
        rest = (self.embedding_parameters + self.extra_parameters) * self.other_bits / 8
        return self.dense_bytes + self.expert_bytes + head + rest


def load_model(name: str, key: str = "model") -> Model:
    """Return the model of a preset, or of a Hugging Face `config.json`.

    Raises:
        InputError: there is none of that name, or the configuration lacks what is needed.
    """
    content, place = read_preset("models", name, key)
    config = content.get("config", content)
    if not isinstance(config, dict):
        raise InputError(f"{place}: config: expected keys and values as in a Hugging Face config.json")
    # Models with several modalities keep the decoder's part apart.
    config = {**config, **config.get("text_config", {})}
    full_name = str(content.get("name", config.get("_name_or_path") or place))
    return _model(full_name, config, place, int(content.get("extra_parameters", 0)))


def _model(name: str, config: dict[str, Any], place: str, extra: int) -> Model:
    hidden, layers = count(config, "hidden_size", place), count(config, "num_hidden_layers", place)
    heads = count(config, "num_attention_heads", place)
    kv_heads = count(config, "num_key_value_heads", place, heads)
    head_size = int(config.get("head_dim") or hidden // heads)
    vocabulary = count(config, "vocab_size", place)
    latent = int(config.get("kv_lora_rank") or 0) and int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"])
    sizes = (head_size, head_size)
    if latent:
        sizes = (int(config["qk_nope_head_dim"]) + int(config["qk_rope_head_dim"]), int(config["v_head_dim"]))
    attention = _latent_attention(config, hidden, heads) if latent else _attention(config, hidden, heads, kv_heads)
    dense, experts, share, widest = _feed_forward(config, hidden, layers, place)
    bits, expert_bits, other_bits = _bits(config)
    return Model(
        name=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        k_head_size=sizes[0],
        v_head_size=sizes[1],
        vocabulary=vocabulary,
        latent=latent,
        windows=_windows(config, layers),
        attention_parameters=layers * attention,
        dense_parameters=dense,
        expert_parameters=experts,
        embedding_parameters=vocabulary * hidden,
        head_parameters=vocabulary * hidden,
        tied=bool(config.get("tie_word_embeddings", False)),
        expert_share=share,
        intermediate=widest,
        bits=bits,
        expert_bits=expert_bits,
        other_bits=other_bits,
        extra_parameters=extra,
        context=int(config.get("max_position_embeddings") or 0),
    )


def _attention(config: dict[str, Any], hidden: int, heads: int, kv_heads: int) -> int:
    """Parameters of one layer's projections of queries, keys, values and output."""
    size = int(config.get("head_dim") or hidden // heads)
    projections = hidden * size * (2 * heads + 2 * kv_heads)
    return projections + (size * (heads + 2 * kv_heads) if config.get("qkv_bias") else 0)


def _latent_attention(config: dict[str, Any], hidden: int, heads: int) -> int:
    """The same of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    rank, rope = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
    nope, value = int(config["qk_nope_head_dim"]), int(config["v_head_dim"])
    q_rank = int(config.get("q_lora_rank") or 0)
    queries = q_rank * (hidden + heads * (nope + rope)) if q_rank else hidden * heads * (nope + rope)
    return queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden


def _feed_forward(config: dict[str, Any], hidden: int, layers: int, place: str) -> tuple[int, int, float, int]:
    """Return dense and expert parameters of all layers, the share of experts of a token, the widest activation."""
    wide = count(config, "intermediate_size", place)
    experts = next(
        (int(config[name]) for name in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(name)), 0
    )
    if not experts:
        return layers * 3 * hidden * wide, 0, 0.0, wide
    chosen = count(
        {**config, "num_experts_per_tok": config.get("num_experts_per_tok", config.get("experts_per_token"))},
        "num_experts_per_tok",
        place,
    )
    expert_wide = int(config.get("moe_intermediate_size") or wide)
    plain = int(config.get("first_k_dense_replace") or 0)
    routed = layers - plain
    shared = int(config.get("n_shared_experts") or 0)
    dense = plain * 3 * hidden * wide + routed * hidden * (3 * expert_wide * shared + experts)
    widest = max(wide if plain else 0, expert_wide * (chosen + shared))
    return dense, routed * experts * 3 * hidden * expert_wide, chosen / experts, widest


def _windows(config: dict[str, Any], layers: int) -> tuple[int, ...]:
    window = int(config.get("sliding_window") or FULL)
    if not window or config.get("use_sliding_window") is False:
        return (FULL,) * layers
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        return tuple(window if kind == "sliding_attention" else FULL for kind in types)
    # Every so manieth layer is a full one; without a pattern none is.
    pattern = int(config.get("sliding_window_pattern") or layers + 1)
    return tuple(FULL if (layer + 1) % pattern == 0 else window for layer in range(layers))


def _bits(config: dict[str, Any]) -> tuple[float, float, float]:
    """Return the bits of a weight of linear layers, of experts, and of all else."""
    plain = 32.0 if str(config.get("torch_dtype", config.get("dtype"))).endswith("float32") else 16.0
    method = str((config.get("quantization_config") or {}).get("quant_method") or "")
    if not method:
        return plain, plain, plain
    bits = _WEIGHT_BITS.get(method, plain)
    # MXFP4 is of experts only.
    return (plain if method == "mxfp4" else bits), bits, plain
