"""To which modules a layer's time goes: the rules for layers that were fused from several modules.

A module is a path, its names in a tuple; the model itself is the empty one. Nothing that a backend tells says how much
of a fused layer belongs to which of its modules, so every rule is a convention, and what is shown names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inferlens.errors import InferlensError, suggestion
from inferlens.record.work import Work
from inferlens.units import listing

Path = tuple[str, ...]
Rule = Callable[[Sequence[Path]], dict[Path, float]]

# Deeper names stay together: a tree of modules is not deeper, and a file that says so would take all memory.
DEEPEST = 64


def path_of(module: str) -> Path:
    """The names in a module's path; PyTorch allows no dot within a name."""
    return tuple(module.split(".", DEEPEST - 1)) if module else ()


def ancestor(paths: Sequence[Path]) -> Path:
    """The deepest module that contains all of ``paths``, of which there is at least one."""
    first, last = min(paths), max(paths)  # in alphabetical order all others lie between these two
    differing = (index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differing, min(len(first), len(last)))]


def whole(paths: Sequence[Path]) -> dict[Path, float]:
    """All of it to the deepest module that contains them all."""
    return {ancestor(paths): 1.0}


def split(paths: Sequence[Path], flops: Mapping[Path, float] | None = None) -> dict[Path, float]:
    """A share to each of the modules in proportion to its own FLOPs; an equal one if none of them has any."""
    known = {path: flops.get(path, 0.0) for path in paths} if flops else {}
    total = sum(known.values())
    if total > 0:
        return {path: own / total for path, own in known.items() if own > 0}
    return {path: 1 / len(paths) for path in paths}


RULES = ("whole", "split")
SAID = {
    "whole": "↑: fused with modules outside of this row; that time is in the deepest module that contains all of them.",
    "split": "≈: a layer fused from several modules, split among them by their FLOPs, equally where none of them has "
    "any: a convention, no measurement.",
    "split equally": "≈: a layer fused from several modules, split equally among them, because their FLOPs are not "
    "known: a convention, no measurement.",
}


def flops_of(work: Work | None) -> dict[Path, float]:
    """Each module's own FLOPs, without those of modules in it; empty where they are not known."""
    return {path_of(each.module): max(each.flops, 0.0) for each in work.modules} if work else {}


def rule_of(name: str, flops: Mapping[Path, float] | None = None) -> Rule:
    """The rule of that name; ``flops`` are those of the modules, where they are known.

    Raises:
        InferlensError: if there is none.
    """
    if name not in RULES:
        hint = suggestion(name, RULES) or "--fused whole"
        raise InferlensError(f"There is no rule '{name}' for fused layers.", expected=listing(RULES), hint=hint)
    return whole if name == "whole" else lambda paths: split(paths, flops)
