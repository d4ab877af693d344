"""Products and conversions inside kernels, the same on a GPU and in Triton's interpreter.

The interpreter keeps bf16 as its bits: a product multiplies these as integers, a conversion to bf16 cuts off instead
of rounding, and one to fp8 loses the carry. Its fp32 products are numpy's, whose error depends on the CPU. Where
kernels are interpreted, the functions here widen or round by hand; for a GPU they compile to the one instruction.
"""

from __future__ import annotations

# torch and triton come with the extra `kernels`; `triton.jit` says nothing to type checkers of launches.
# pyright: reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false
import triton
import triton.language as tl

from . import launch

INTERPRETED = tl.constexpr(launch.INTERPRETED)
_FP64_PRODUCTS = tl.constexpr(launch.INTERPRETED and tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 5))


@triton.jit
def dot(a, b):
    """`a @ b`, accumulated in fp32; fp32 operands are not rounded to tf32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    if _FP64_PRODUCTS:
        return tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64).to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """fp32 `x` as `dtype`, rounded to the nearest, ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit
def to_fp8(x):
    """fp32 `x` as e4m3, rounded to the nearest, ties to even; beyond the largest finite number, that number."""
    x = tl.clamp(x, -448.0, 448.0)
    if INTERPRETED:
        # Normal numbers have 3 bits behind the leading one; below 2^-6 the step is 2^-9, which the sum rounds to.
        bits = x.to(tl.uint32, bitcast=True)
        normal = (bits + 0x7FFFF + ((bits >> 20) & 1)) & 0xFFF00000
        small = ((tl.abs(x) + 24576.0) - 24576.0).to(tl.uint32, bitcast=True) | (bits & 0x80000000)
        x = tl.where(tl.abs(x) < 0.015625, small, normal).to(tl.float32, bitcast=True)
    return x.to(tl.float8e4nv)
