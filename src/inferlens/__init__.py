"""Inferlens: which way of running a deep-learning model is fastest on this hardware, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferlens.api import bench
    from inferlens.case import Budget, Case, TensorSpec
    from inferlens.comparing.cases import Compared, compare
    from inferlens.duel import Duel
    from inferlens.errors import InferlensError
    from inferlens.insight.findings import Finding, findings
    from inferlens.layer_profile import Profile
    from inferlens.plan import Plan
    from inferlens.profile_store import load_profiles
    from inferlens.profiling import profile
    from inferlens.record import Record
    from inferlens.rounds import ab
    from inferlens.store import load_records
    from inferlens.trace.frames import load_trace

__version__ = "0.1.0"
__all__ = [
    "Budget", "Case", "Compared", "Duel", "Finding", "InferlensError", "Plan", "Profile", "Record", "TensorSpec",
    "__version__", "ab", "bench", "compare", "findings", "load_profiles", "load_records", "load_trace", "profile",
]  # fmt: skip

_HOMES = {
    "ab": "rounds", "Duel": "duel", "bench": "api", "compare": "comparing.cases", "Compared": "comparing.cases",
    "Budget": "case", "Case": "case", "TensorSpec": "case", "InferlensError": "errors",
    "Plan": "plan", "Record": "record", "load_records": "store", "profile": "profiling", "Profile": "layer_profile",
    "load_profiles": "profile_store", "findings": "insight.findings", "Finding": "insight.findings",
    "load_trace": "trace.frames",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that ``import inferlens`` stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'inferlens' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"inferlens.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
