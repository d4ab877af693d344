"""Which slots a batch of requests gets when pages hold more than one token (SGLang 0.5.22, `allocator/paged.py`).

A request that grows from `prefix` to `seq` tokens first fills its last page, behind its last slot, and then takes
`ceil(seq / page_size) - ceil(prefix / page_size)` pages from the head of the free pages, in the order of the batch; its
last new page may stay partial. Decoding is the same with one token: a new page where `(seq - 1) % page_size == 0`.

Every program adds up by itself what the requests before it take: a few hundred integers, cheaper than a launch for a
prefix sum.
"""

from __future__ import annotations

# torch and triton come with the extra `kernels`; `triton.jit` says nothing to type checkers of launches.
# pyright: reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from .checks import expect, expect_block_size

_BLOCK = 256


@triton.jit
def alloc_extend_kernel(
    # tensors
    prefix_lens,
    seq_lens,
    last_slots,
    free_pages,
    out,
    # meta
    PAGE_SIZE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """One program a request."""
    req = tl.program_id(0)
    tokens_before = tl.zeros((), tl.int64)
    pages_before = tl.zeros((), tl.int64)
    for begin in range(0, req, BLOCK):
        other = begin + tl.arange(0, BLOCK)
        prefix = tl.load(prefix_lens + other, mask=other < req, other=0)
        seq = tl.load(seq_lens + other, mask=other < req, other=0)
        tokens_before += tl.sum(seq - prefix, 0)
        pages_before += tl.sum((seq + PAGE_SIZE - 1) // PAGE_SIZE - (prefix + PAGE_SIZE - 1) // PAGE_SIZE, 0)

    prefix = tl.load(prefix_lens + req)
    seq = tl.load(seq_lens + req)
    last = tl.load(last_slots + req)
    held = (prefix + PAGE_SIZE - 1) // PAGE_SIZE
    for begin in range(0, seq - prefix, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        inside = place < seq - prefix
        position = prefix + place
        new = inside & (position >= held * PAGE_SIZE)
        page = tl.load(free_pages + pages_before + position // PAGE_SIZE - held, mask=new, other=0)
        slot = tl.where(new, page * PAGE_SIZE + position % PAGE_SIZE, last + 1 + place)
        tl.store(out + tokens_before + place, slot, mask=inside)


def alloc_extend(
    prefix_lens: Tensor, seq_lens: Tensor, last_slots: Tensor, free_pages: Tensor, out: Tensor, page_size: int
) -> None:
    """Give each request of a batch the slots of its new tokens.

    Args:
        prefix_lens: int64 [n], tokens that have slots.
        seq_lens: int64 [n], tokens that will; not below.
        last_slots: int64 [n], slot of the last token that has one; any number where there is none.
        free_pages: int64 [any], from the head; as many as are needed.
        out: int64 [sum of seq_lens - prefix_lens], the requests' slots one behind the other; all is written.
        page_size: tokens a page, 1 to 256.

    Raises:
        TypeError, ValueError: tensors or sizes that do not go together.
    """
    _expect(seq_lens, last_slots, free_pages, out, page_size)
    expect("prefix_lens", prefix_lens, (len(seq_lens),), torch.int64, out)
    if len(seq_lens):
        alloc_extend_kernel[(len(seq_lens),)](
            prefix_lens, seq_lens, last_slots, free_pages, out, PAGE_SIZE=page_size, BLOCK=_BLOCK, num_warps=4
        )


def alloc_extend_reference(
    prefix_lens: Tensor, seq_lens: Tensor, last_slots: Tensor, free_pages: Tensor, out: Tensor, page_size: int
) -> None:
    """The same in plain torch."""
    _expect(seq_lens, last_slots, free_pages, out, page_size)
    counts = seq_lens - prefix_lens
    held = -(-prefix_lens // page_size)
    pages = -(-seq_lens // page_size) - held
    request = torch.arange(len(counts), device=out.device).repeat_interleave(counts)
    place = torch.arange(len(request), device=out.device) - (counts.cumsum(0) - counts)[request]
    position = prefix_lens[request] + place
    page = (pages.cumsum(0) - pages)[request] + position // page_size - held[request]
    new = position >= held[request] * page_size
    slots = last_slots[request] + 1 + place
    slots[new] = free_pages[page[new]] * page_size + position[new] % page_size
    out[:] = slots


@triton.jit
def alloc_decode_kernel(
    # tensors
    seq_lens,
    last_slots,
    free_pages,
    out,
    # sizes
    num_reqs,
    # meta
    PAGE_SIZE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """One program BLOCK requests."""
    mine = tl.program_id(0) * BLOCK
    pages_before = tl.zeros((), tl.int64)
    for begin in range(0, mine, BLOCK):
        seq = tl.load(seq_lens + begin + tl.arange(0, BLOCK))
        pages_before += tl.sum(((seq - 1) % PAGE_SIZE == 0).to(tl.int64), 0)
    req = mine + tl.arange(0, BLOCK)
    inside = req < num_reqs
    seq = tl.load(seq_lens + req, mask=inside, other=0)
    new = inside & ((seq - 1) % PAGE_SIZE == 0)
    count = new.to(tl.int64)
    page = tl.load(free_pages + pages_before + tl.cumsum(count, 0) - count, mask=new, other=0)
    last = tl.load(last_slots + req, mask=inside, other=0)
    tl.store(out + req, tl.where(new, page * PAGE_SIZE, last + 1), mask=inside)


def alloc_decode(seq_lens: Tensor, last_slots: Tensor, free_pages: Tensor, out: Tensor, page_size: int) -> None:
    """Give each request of a batch the slot of one more token.

    Args:
        seq_lens: int64 [n], tokens with the new one.
        last_slots: int64 [n], slot of the token before it.
        free_pages: int64 [any], from the head; as many as are needed.
        out: int64 [n], every element is written.
        page_size: tokens a page, 1 to 256.

    Raises:
        TypeError, ValueError: tensors or sizes that do not go together.
    """
    _expect(seq_lens, last_slots, free_pages, out, page_size)
    count = len(seq_lens)
    if count:
        alloc_decode_kernel[(-(-count // _BLOCK),)](
            seq_lens, last_slots, free_pages, out, count, PAGE_SIZE=page_size, BLOCK=_BLOCK, num_warps=4
        )


def alloc_decode_reference(
    seq_lens: Tensor, last_slots: Tensor, free_pages: Tensor, out: Tensor, page_size: int
) -> None:
    """The same in plain torch."""
    _expect(seq_lens, last_slots, free_pages, out, page_size)
    new = (seq_lens - 1) % page_size == 0
    slots = last_slots + 1
    slots[new] = free_pages[: int(new.sum())] * page_size
    out[:] = slots


def _expect(seq_lens: Tensor, last_slots: Tensor, free_pages: Tensor, out: Tensor, page_size: int) -> None:
    expect("out", out, (None,), torch.int64)
    expect("seq_lens", seq_lens, (None,), torch.int64, out)
    expect("last_slots", last_slots, (len(seq_lens),), torch.int64, out)
    expect("free_pages", free_pages, (None,), torch.int64, out)
    expect_block_size(page_size)
