"""How things are named in a finding's sentence: shortened, counted, never invented."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inferlens.analysis.findings.evidence import Launched, Part
from inferlens.analysis.profile.kernels import short_name
from inferlens.analysis.profile.modules import ancestor, path_of
from inferlens.units import listing, plural

_LONGEST = 60
_FEW = 3


def short(name: str) -> str:
    """A name that a sentence can bear, its middle left out if it is long."""
    text = " ".join(name[:5000].split()) or "(no name)"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"


def module(path: str) -> str:
    """A module's path; the model itself has none."""
    return short(path) if path else "the model"


def part(of: Part) -> str:
    """A layer by the modules that it came from, where that is known, else by its own name."""
    modules = of.layer.modules
    if not modules:
        return short(of.name)
    if len(modules) <= _FEW:
        return " + ".join(map(module, modules))
    common = ".".join(ancestor(list(map(path_of, modules))))
    return short(f"{of.name} in {common}" if common else of.name)


def few(names: Sequence[str], most: int = _FEW) -> str:
    """``a, b, c and 4 others``, each name once."""
    once = list(dict.fromkeys(names))
    rest = len(once) - most
    return listing(once if rest <= 0 else [*once[:most], plural(rest, "other")])


def longest(parts: Sequence[Part], most: int = _FEW) -> str:
    """Those that take most, by name: ``conv1, layer1 and fc``."""
    names = [part(each) for each in sorted(parts, key=lambda each: -each.seconds)]
    return listing(list(dict.fromkeys(names))[:most])


def where(parts: Sequence[Part]) -> str:
    """The end of a sentence: ``: conv1``, or ``; most in conv1, layer1 and fc``."""
    return f"; most in {longest(parts)}" if len(parts) > 1 else f": {longest(parts)}"


def kernel(of: Launched) -> str:
    """A kernel's name without its namespaces and arguments, as in the table of kernels."""
    return short(short_name(of.kernel.name))


def longest_kernels(kernels: Sequence[Launched], most: int = 2) -> str:
    """Those that take most, by the modules that they came from, or by their own names."""
    ordered = sorted(kernels, key=lambda each: -each.seconds)
    paths = [each.kernel.modules[0] if each.kernel.modules else None for each in ordered]
    names = [kernel(each) if path is None else module(path) for each, path in zip(ordered, paths, strict=True)]
    return few(names, most)


def kinds(parts: Sequence[Part]) -> str:
    """``7 Reorder and 2 Transpose``, or ``Reorder`` for a single one."""
    if len(parts) == 1:
        return short(parts[0].layer.kind) if parts[0].layer.kind else "of no known kind"
    counts = Counter(short(each.layer.kind) if each.layer.kind else "of no known kind" for each in parts)
    named = [f"{count:,} {kind}" for kind, count in counts.most_common(4)]
    rest = sum(counts.values()) - sum(count for _, count in counts.most_common(4))
    return listing([*named, plural(rest, "other")] if rest else named)
