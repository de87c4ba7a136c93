"""From the layers of one run to spans of modules, nested by their paths.

A module's span reaches from the first of its consecutive layers to the last, those of modules in it included. A layer
of another module, or of none that is known, ends it: a module that goes on after that has another span. A fused layer
belongs to the deepest module that contains all of those it came from.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from inferlens.analysis.profile.attribution import Path


class Placed(Struct, frozen=True, gc=False):
    """A layer in one run, in nanoseconds, and the deepest module that contains all of its modules, if any is known."""

    begin: int
    end: int
    path: Path | None


class ModuleSpan(Struct, gc=False):
    """A module in one run.

    Attributes:
        path: its names; the model itself is empty.
        begin: of its first layer, in nanoseconds.
        end: of its last layer, but no later than the next one of another module begins.
        layers: how many.
        time: what they took together, in nanoseconds.
    """

    path: Path
    begin: int
    end: int
    layers: int = 0
    time: int = 0


def module_spans(placed: Sequence[Placed]) -> list[ModuleSpan]:
    """Spans in the order of their begins, each before those within it; ``placed`` is in the order of begins."""
    found: list[ModuleSpan] = []
    open_: list[ModuleSpan] = []
    for layer in placed:
        path = layer.path
        if path is None:
            _close(open_, 0, layer.begin)
            continue
        shared = _shared(open_, path)
        _close(open_, shared, layer.begin)
        for depth in range(shared, len(path) + 1):
            open_.append(ModuleSpan(path[:depth], layer.begin, layer.end))
            found.append(open_[-1])
        for span in open_:
            span.end = max(span.end, layer.end)
            span.layers += 1
            span.time += layer.end - layer.begin
    return found


def _shared(open_: Sequence[ModuleSpan], path: Path) -> int:
    """How many of the open spans, from the model down, a layer of that path is in."""
    inside = 0
    while inside < len(open_) and open_[inside].path == path[:inside] and inside <= len(path):
        inside += 1
    return inside


def _close(open_: list[ModuleSpan], keep: int, moment: int) -> None:
    """Ends all but the first ``keep`` spans, at ``moment`` at the latest."""
    for span in open_[keep:]:
        span.end = max(min(span.end, moment), span.begin)
    del open_[keep:]
