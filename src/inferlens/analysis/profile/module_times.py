"""One backend's time, module by module: what each module took by itself, and with all that is below it.

What the time is of are the layers of a profile, or its kernels, by its level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from inferlens.analysis.profile.attribution import Path, Rule, ancestor, path_of
from inferlens.analysis.profile.runs import Array, Runs, parts_of
from inferlens.record.kernel_profile import Kernel
from inferlens.record.layer_profile import Layer, Profile


@dataclass(eq=False)
class Tally:
    """Times of modules in each run, in seconds.

    Attributes:
        own: of layers that count as a module's own.
        total: of the layers of a module and of those below it.
        unknown: of layers of which it is not known from which module they came.
        shared: modules of which a layer was fused with modules outside of them, so that their total is not theirs alone
            or not all of theirs.
        untimed: modules with, at any depth, a layer that has no time.
        order: all modules that layers name, those above them too, in the order of execution.
    """

    runs: Runs
    unknown: Array
    own: dict[Path, Array] = field(default_factory=dict)
    total: dict[Path, Array] = field(default_factory=dict)
    shared: set[Path] = field(default_factory=set)
    untimed: set[Path] = field(default_factory=set)
    order: dict[Path, None] = field(default_factory=dict)


def tally(profile: Profile, runs: Runs, rule: Rule) -> Tally:
    """The times of a profile's modules, fused layers by ``rule``."""
    found = Tally(runs=runs, unknown=np.zeros(runs.count))
    for index, layer in enumerate(parts_of(profile)):
        _add(found, layer, runs.layers[index], runs.was_timed[index], rule)
    return found


def above(path: Path) -> Iterator[Path]:
    """The model, the modules on the way down, and the module itself."""
    return (path[:length] for length in range(len(path) + 1))


def _add(found: Tally, layer: Layer | Kernel, seconds: Array, was_timed: bool, rule: Rule) -> None:
    paths = list(dict.fromkeys(map(path_of, layer.modules)))
    if not paths:
        found.unknown = found.unknown + seconds
        return
    top = len(ancestor(paths))
    for path in paths:
        found.order.update(dict.fromkeys(above(path)))
        found.shared.update(each for each in above(path) if len(each) > top)
        if not was_timed:
            found.untimed.update(above(path))
    if not was_timed:
        return
    for path, share in rule(paths).items():
        found.own[path] = found.own.get(path, 0.0) + share * seconds
        for each in above(path):
            found.total[each] = found.total.get(each, 0.0) + share * seconds
