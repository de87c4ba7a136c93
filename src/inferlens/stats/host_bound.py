"""The definition of a host bottleneck for records, profiles and traces.

A GPU that waits for a fifth of the time is bound by the host. Without knowledge of the GPU, a call is bound by the host
if enqueueing it takes about as long as the call: the GPU is done when the last kernel arrives.
"""

from __future__ import annotations

WAITING = 0.2
ENQUEUEING = 0.9


def gpu_waits_for_host(waiting: float, whole: float) -> bool:
    """Return whether a GPU that waits for the host for ``waiting`` of ``whole`` seconds is bound by it."""
    return waiting > WAITING * whole


def enqueueing_is_bottleneck(enqueue: float, latency: float) -> bool:
    """Return whether a call is bound by the host, from the time to enqueue it and its latency."""
    return enqueue >= ENQUEUEING * latency
