"""A trace file of a profiler as columns, and the sums over them; needs numpy and msgspec alone.

``Trace`` has all complete events in the order of the file. ``trace.gpu``, ``trace.calls`` (of the CUDA runtime and
driver), ``trace.scopes`` (operators and annotations) and ``trace.allocations`` have columns of their own. Their ``row``
is the index of an event among all events. All other indices are indices in such columns.
"""
