"""One row of a roofline: a layer, or a module with its shares of the layers that it is in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.profile.attribution import Path, Rule, path_of
from inferlens.analysis.profile.roofline_share import Done

Bound = Literal["compute", "memory", ""]


class Floor(Struct, frozen=True, kw_only=True):
    """One layer or module: what it has to do, the least time that takes, and the time it took; seconds and bytes.

    Attributes:
        place: of a layer, its place in the order of execution, from 1; of a module, that of its first layer.
        name: of a layer as the backend names it, of a module its path.
        modules: those that it came from; none where that is not known.
        time: typical time of all its calls in a run.
        share: that over the typical whole.
        flops, bytes: what it has to do in a run; ``None`` where its modules are not known.
        intensity: FLOPs for each byte.
        floor: the least time for that; ``None`` where the work is not known.
        bound: what the floor is made by: the rate (``compute``) or the bandwidth (``memory``); empty without a floor.
        distance: time over floor; ``None`` where there is no floor, or nothing to do.
        won: time less floor, never below zero: what there is to be won at most.
    """

    place: int
    name: str
    kind: str = ""
    modules: tuple[str, ...] = ()
    time: float
    share: float | None = None
    flops: float | None = None
    bytes: float | None = None
    intensity: float | None = None
    floor: float | None = None
    bound: Bound = ""
    distance: float | None = None
    won: float | None = None


@dataclass
class Part:
    """A row being added up; ``compute`` and ``memory`` are seconds of floors that are made by each."""

    place: int
    name: str
    kind: str
    modules: tuple[str, ...]
    time: float = 0.0
    done: Done | None = None
    compute: float = 0.0
    memory: float = 0.0
    won: float = 0.0

    def add(self, other: Part, share: float) -> None:
        """Takes a share of another."""
        self.time += share * other.time
        self.compute += share * other.compute
        self.memory += share * other.memory
        self.won += share * other.won
        if other.done:
            mine = self.done or Done(0.0, 0.0)
            self.done = Done(mine.flops + share * other.done.flops, mine.bytes + share * other.done.bytes)

    def row(self, whole: float) -> Floor:
        """The row; ``whole`` is the typical time of a run."""
        made = Floor(
            place=self.place, name=self.name, kind=self.kind, modules=self.modules, time=self.time,
            share=self.time / whole if whole else None,
        )  # fmt: skip
        if self.done is None:
            return made
        floor = self.compute + self.memory
        return replace(
            made,
            flops=self.done.flops,
            bytes=self.done.bytes,
            intensity=self.done.flops / self.done.bytes if self.done.bytes else None,
            floor=floor,
            bound=("compute" if self.compute > self.memory else "memory") if floor else "",
            distance=self.time / floor if floor else None,
            won=self.won,
        )


def measured(part: Part, done: Done | None, rate: float | None, bandwidth: float) -> Part:
    """``part`` with its floor, if what is to be done is known; ``rate`` of nothing: the floor is that of memory."""
    if done:
        compute, memory = done.flops / rate if rate else 0.0, done.bytes / bandwidth
        part.done = done
        part.compute, part.memory = (compute, 0.0) if compute > memory else (0.0, memory)
        part.won = max(part.time - max(compute, memory), 0.0)
    return part


def by_module(layers: Iterable[Part], kinds: Mapping[str, str], rule: Rule, depth: int | None) -> list[Part]:
    """Modules with their shares of the layers; those deeper than ``depth`` count to the ones above them.

    Layers of no known module are one row without a name.
    """
    found: dict[Path | None, Part] = {}
    for layer in layers:
        paths = list(dict.fromkeys(map(path_of, layer.modules)))
        for path, share in rule(paths).items() if paths else [(None, 1.0)]:
            cut = path if path is None else path[:depth]
            name = ".".join(cut or ())
            if cut not in found:
                known = cut is not None
                found[cut] = Part(layer.place, name, kinds.get(name, "") if known else "", (name,) if known else ())
            found[cut].add(layer, share)
    return list(found.values())
