"""Routers: which of several engines a request goes to. Each is one file; `ROUTERS` names them."""

from __future__ import annotations

from .least_loaded import LeastLoaded
from .prefix_aware import PrefixAware
from .round_robin import RoundRobin
from .router import Router
from .session import Sticky

ROUTERS: dict[str, type[Router]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "prefix_aware": PrefixAware,
    "session": Sticky,
}

__all__ = ["ROUTERS", "Router"]
