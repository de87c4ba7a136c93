"""What limits a call on a GPU, by its record: the host, the memory, or conversions of the memory layout."""

from __future__ import annotations

from inferlens.analysis.findings.rules.waiting import bound_by
from inferlens.record.record import KERNEL_FAMILIES, Record

MEMORY = 0.5  # of the GPU time, in kernels that are neither convolutions nor matrix products
LAYOUT = 0.05  # of the GPU time, in conversions
REASONS = {
    "host": "calls of {} waited for the host",
    "layout": "{} converted memory layouts",
    "memory": "{} was bound by memory",
}
DENSE = ("convolution", "matrix product")


def bottleneck(record: Record) -> str:
    """Return the key in ``REASONS`` of what limits a call; empty if nothing of these does, or it is not known."""
    if bound_by(record) == "host":
        return "host"
    shares = record.facts.get(KERNEL_FAMILIES)
    if not isinstance(shares, dict) or not shares:
        return ""
    if shares.get("reformat", 0.0) >= LAYOUT:
        return "layout"
    return "memory" if 1 - sum(shares.get(name, 0.0) for name in DENSE) >= MEMORY else ""
