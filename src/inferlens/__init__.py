"""Inferlens: which way of running a deep-learning model is fastest on this hardware, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferlens.analysis.compare.ab_result import ABResult
    from inferlens.analysis.compare.cases import Compared, compare
    from inferlens.analysis.findings import Finding, findings
    from inferlens.analysis.loaded_trace import load_trace
    from inferlens.errors import InferlensError
    from inferlens.execution.ab import ab
    from inferlens.execution.bench import bench
    from inferlens.execution.profile import profile
    from inferlens.record.layer_profile import Profile
    from inferlens.record.profile_store import load_profiles
    from inferlens.record.record import Record
    from inferlens.record.store import load_records
    from inferlens.spec.case import Budget, Case, TensorSpec
    from inferlens.spec.plan import Plan

__version__ = "0.1.0"
__all__ = [
    "ABResult", "Budget", "Case", "Compared", "Finding", "InferlensError", "Plan", "Profile", "Record", "TensorSpec",
    "__version__", "ab", "bench", "compare", "findings", "load_profiles", "load_records", "load_trace", "profile",
]  # fmt: skip

_HOMES = {
    "ab": "execution.ab", "ABResult": "analysis.compare.ab_result", "bench": "execution.bench",
    "compare": "analysis.compare.cases", "Compared": "analysis.compare.cases",
    "Budget": "spec.case", "Case": "spec.case", "TensorSpec": "spec.case", "InferlensError": "errors",
    "Plan": "spec.plan", "Record": "record.record", "load_records": "record.store", "profile": "execution.profile",
    "Profile": "record.layer_profile", "load_profiles": "record.profile_store", "findings": "analysis.findings",
    "Finding": "analysis.findings", "load_trace": "analysis.loaded_trace",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that ``import inferlens`` stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'inferlens' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"inferlens.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
