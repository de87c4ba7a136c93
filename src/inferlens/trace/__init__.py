"""A profiler's trace file becomes columns, and the columns what they add up to; needs numpy and msgspec alone.

``Trace`` has all complete events in the order of the file. ``trace.gpu``, ``trace.calls`` (of the CUDA runtime and
driver), ``trace.scopes`` (operators and annotations) and ``trace.allocations`` have columns of their own, whose ``row``
is an event's place among all; a *place* is one in such columns.
"""

from inferlens.trace.reader import read
from inferlens.trace.trace import NONE, UNKNOWN, Category, LaunchLinks, Trace

__all__ = ["NONE", "UNKNOWN", "Category", "LaunchLinks", "Trace", "read"]
