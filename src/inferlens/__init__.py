"""Inferlens: which way of running a deep-learning model is fastest on this hardware, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferlens.analysis.ab_result import ABResult, ABSteps
    from inferlens.analysis.comparison import RecordComparison, compare
    from inferlens.analysis.evidence import Finding
    from inferlens.analysis.findings import findings
    from inferlens.analysis.trace import load_trace
    from inferlens.api import ab, ab_steps, bench, export, load, load_test, profile, quantize, tune
    from inferlens.errors import InferlensError
    from inferlens.record.builds import Quantization
    from inferlens.record.profile import Profile
    from inferlens.record.record import Record
    from inferlens.record.store import load_profiles
    from inferlens.spec.case import Budget, Case, TensorSpec
    from inferlens.spec.plan import Plan
    from inferlens.views.results import LoadTest, Records, Tuning, load_records

__version__ = "0.1.0"
__all__ = [
    "ABResult", "ABSteps", "Budget", "Case", "Finding", "InferlensError", "LoadTest", "Plan", "Profile", "Quantization",
    "Record", "RecordComparison", "Records", "TensorSpec", "Tuning", "__version__", "ab", "ab_steps", "bench",
    "compare", "export", "findings", "load", "load_profiles", "load_records", "load_test", "load_trace", "profile",
    "quantize", "tune",
]  # fmt: skip

_HOMES = {
    "Budget": "spec.case", "Case": "spec.case", "TensorSpec": "spec.case", "Plan": "spec.plan",
    "InferlensError": "errors",
    **dict.fromkeys(("ab", "ab_steps", "bench", "export", "load", "load_test", "profile", "quantize", "tune"), "api"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that ``import inferlens`` stays instant."""
    if name not in __all__:
        raise AttributeError(f"module 'inferlens' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"inferlens.{_HOMES.get(name, 'views.results')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
