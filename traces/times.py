"""Arrival times to integer nanoseconds, exactly: from integers, decimal text and ISO stamps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

import numpy as np

from .trace import Int64

NS_PER_UNIT = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
TIME_UNITS = (*NS_PER_UNIT, "datetime")
TEN_YEARS_NS = 3653 * 86_400 * 10**9
_MAX_NS = 2**62
_PLAIN = re.compile(r"[-0-9:.T ]*", re.ASCII)
_STAMP = re.compile(
    r"\s*(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?\s*(Z|UTC|[+-]\d\d:?\d\d)?\s*", re.ASCII
)


def number_to_ns(value: object, ns_per_unit: int) -> int:
    """Nanoseconds of a number in some unit, rounded to the nearest (only a finer fraction than 1 ns is lost).

    Args:
        value: an int or a finite Decimal, not negative.
        ns_per_unit: nanoseconds in the unit of `value`.

    Raises:
        ValueError: not such a number, or beyond what 64 bits hold.
    """
    if type(value) is int:
        ns = value * ns_per_unit
    elif isinstance(value, Decimal) and value.is_finite() and abs(value) < _MAX_NS:
        ns = int((value * ns_per_unit).to_integral_value())
    else:
        raise ValueError(value)
    if not 0 <= ns < _MAX_NS:
        raise ValueError(value)
    return ns


def stamp_to_ns(text: object) -> int:
    """Nanoseconds since 1970 of an ISO date and time; without a time zone it is taken as UTC.

    Raises:
        ValueError: not such a stamp.
    """
    match = _STAMP.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(text)
    day, clock, fraction, zone = match.groups()
    zone = "+00:00" if zone in (None, "Z", "UTC") else zone
    seconds = int(datetime.fromisoformat(f"{day}T{clock}{zone}").timestamp())
    return seconds * 10**9 + int((fraction or "").ljust(9, "0"))


def stamps_to_ns(texts: Sequence[str]) -> Int64:
    """`stamp_to_ns` of many stamps in UTC or without a zone, int64 [n]; other zones raise `ValueError`."""
    if texts[0].endswith("+00:00"):
        texts = [text.removesuffix("+00:00") for text in texts]
    joined = "".join(texts)
    # numpy also takes bare dates, words such as "now" and offsets (with a warning): only full stamps pass.
    plain = joined.count("-") == 2 * len(texts) == joined.count(":") and _PLAIN.fullmatch(joined)
    if not plain or min(map(len, texts)) < len("2023-11-16 18:17:03"):
        raise ValueError("not all plain stamps")
    stamps = np.array(texts, dtype="datetime64[ns]")
    if np.isnat(stamps).any():
        raise ValueError("not all stamps")
    return stamps.astype(np.int64)
