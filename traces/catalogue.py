"""Traces with a name: what comes with the package, and what can be fetched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError


@dataclass(frozen=True)
class Builtin:
    """A trace that comes with the package."""

    file: str
    id_tokens: int
    about: str


@dataclass(frozen=True)
class Published:
    """A public trace that `trace fetch` downloads."""

    url: str
    sha256: str | None
    """None: not verified yet; the sum is then shown."""
    licence: str
    about: str

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


BUILTINS = {"sample": Builtin("sample.jsonl.gz", 64, "an hour of synthetic chat, bursty, sessions and shared prompts")}

_MOONCAKE = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces"
_AZURE = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
_AZURE_2024 = "https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace"
_BAILIAN = "https://raw.githubusercontent.com/alibaba-edu/qwen-bailian-usagetraces-anon/main"
_BURSTGPT = "https://raw.githubusercontent.com/HPMLL/BurstGPT/main/data"
_APACHE, _CC_BY = "Apache-2.0", "CC-BY"

PUBLISHED = {
    "mooncake-conversation": Published(
        f"{_MOONCAKE}/conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        _APACHE,
        "one hour of Kimi chat, 12,031 requests (FAST'25)",
    ),
    "mooncake-toolagent": Published(
        f"{_MOONCAKE}/toolagent_trace.jsonl", None, _APACHE, "one hour of Kimi tool and agent calls (FAST'25)"
    ),
    "mooncake-synthetic": Published(
        f"{_MOONCAKE}/synthetic_trace.jsonl", None, _APACHE, "Mooncake's synthetic mix (FAST'25)"
    ),
    "azure-2023-conv": Published(
        f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        _CC_BY,
        "one hour of a chat service, 19,366 requests, no prompt identity",
    ),
    "azure-2023-code": Published(
        f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        _CC_BY,
        "one hour of code completion, 8,819 requests, no prompt identity",
    ),
    "azure-2024-conv": Published(
        f"{_AZURE_2024}/AzureLLMInferenceTrace_conv_1week.csv",
        None,
        _CC_BY,
        "a week of a chat service (large)",
    ),
    "azure-2024-code": Published(
        f"{_AZURE_2024}/AzureLLMInferenceTrace_code_1week.csv",
        None,
        _CC_BY,
        "a week of code completion (large)",
    ),
    "bailian-a": Published(
        f"{_BAILIAN}/qwen_traceA_blksz_16.jsonl", None, _APACHE, "two hours of consumer chat, linked turns"
    ),
    "bailian-b": Published(
        f"{_BAILIAN}/qwen_traceB_blksz_16.jsonl",
        None,
        _APACHE,
        "two hours of business API calls, linked turns",
    ),
    "burstgpt-1": Published(
        f"{_BURSTGPT}/BurstGPT_1.csv",
        None,
        _CC_BY,
        "two months of ChatGPT and GPT-4, no prompt identity (large)",
    ),
}


def builtin_names() -> tuple[str, ...]:
    """Names of the traces that are always there."""
    return tuple(BUILTINS)


def cache_folder() -> Path:
    """Where fetched traces lie."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvreplay"


def resolve(source: str) -> tuple[str, int | None]:
    """The path of a source, and its tokens a block id where its name settles that.

    Raises:
        InputError: a published trace that has not been fetched, or neither a file nor a name.
    """
    if source in BUILTINS:
        builtin = BUILTINS[source]
        return str(Path(__file__).parent / "data" / builtin.file), builtin.id_tokens
    if source in PUBLISHED and not Path(source).exists():
        path = cache_folder() / PUBLISHED[source].file
        if not path.exists():
            raise InputError(f"{source}: not downloaded yet; `kvreplay trace fetch {source}` does that")
        return str(path), None
    if source != "-" and not Path(source).exists():
        names = ", ".join((*BUILTINS, *PUBLISHED))
        raise InputError(f"{source}: no such file, nor the name of a known trace ({names})")
    return source, None
